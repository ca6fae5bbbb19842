"""The sites that data sets are downloaded from, and the checksums of their files."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import DataError


class Download(NamedTuple):
    """One file to download, and its checksum."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


class Source(NamedTuple):
    """How a data set is downloaded and checked."""

    page: str  # its home page
    folder: str  # its name in the data folder
    downloads: tuple[Download, ...] = ()  # archives with that folder, or files that go into it
    files: Mapping[str, str] = {}  # MD5 of the files, before compression, in every layout
    by_hand: str = ""  # how to get it if it cannot be downloaded
    train: int = 0  # samples of the whole set; 0: there is no such set, everybody records one
    test: int = 0


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"

SOURCES = {
    "fashion_mnist": Source(
        "https://github.com/zalandoresearch/fashion-mnist",
        "fashion-mnist",
        (
            Download(f"{_FASHION}train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Download(f"{_FASHION}train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Download(f"{_FASHION}t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Download(f"{_FASHION}t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        {
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        train=60_000,
        test=10_000,
    ),
    "cifar10": Source(
        f"{_CIFAR}cifar.html",
        "cifar-10-batches-bin",
        (Download(f"{_CIFAR}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        train=50_000,
        test=10_000,
    ),
    "cifar100": Source(
        f"{_CIFAR}cifar.html",
        "cifar-100-binary",
        (Download(f"{_CIFAR}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        {
            "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
            "test.bin": "4499cfba6c016c1be1438163640a0898",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
        train=50_000,
        test=10_000,
    ),
    "tiny_imagenet": Source(
        "http://cs231n.stanford.edu",
        "tiny-imagenet-200",
        (
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        train=100_000,
        test=10_000,
    ),
    "udacity": Source(
        "https://github.com/udacity/self-driving-car-sim",
        "udacity",
        by_hand="drive and record in Udacity's simulator, or take recordings others published, "
        "and put each (driving_log.csv and IMG/) into a folder of its own in udacity/",
    ),
}


def as_published(source: Source, folder: Path) -> bool | None:
    """Whether the folder holds what the site published; None where no checksum is known."""
    held = [(folder / name, folder / f"{name}.gz", md5) for name, md5 in source.files.items()]
    held = [(plain, gz, md5) for plain, gz, md5 in held if plain.is_file() or gz.is_file()]
    return all(_md5_of(plain, gz) == md5 for plain, gz, md5 in held) if held else None


def _md5_of(plain: Path, packed: Path) -> str:
    try:
        raw = gzip.decompress(packed.read_bytes()) if packed.is_file() else plain.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{plain}: cannot be read ({error}); fetch it again") from error
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()
