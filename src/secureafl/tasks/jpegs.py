"""Folders of JPEG files, decoded once into an array that is cached beside the files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from secureafl.core.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 64  # pixels


def read_jpegs(
    files: Sequence[Path], folder: Path, prepare: Callable[[Image], Image]
) -> np.ndarray:
    """Return RGB images of 64 x 64 pixels, in the files' order: bytes of shape (files, 3, 64, 64).

    `prepare` brings an image to that size. The array is cached in `folder`, if that is writable,
    under a name made of the files' names, sizes and times and of its own checksum, so changed
    files are decoded anew.
    """
    key = _key(files, folder)
    kept = _kept(folder, key, len(files))
    if kept is not None:
        return kept
    images = np.empty((len(files), 3, SIDE, SIDE), np.uint8)
    for place, path in zip(images, files, strict=True):
        place[:] = _decoded(path, prepare)
    with contextlib.suppress(OSError):
        _keep(images, folder, key)
    return images


def _decoded(path: Path, prepare: Callable[[Image], Image]) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        remedy = "pip install 'secureafl[images]'"
        raise DataError(f"{path}: reading images needs Pillow; {remedy}") from error
    try:
        with Image.open(path, formats=["JPEG", "PNG"]) as image:
            pixels = np.asarray(prepare(image.convert("RGB")))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: no image or a damaged one; fetch the file again") from error
    if pixels.shape != (SIDE, SIDE, 3):
        height, width, _ = pixels.shape
        raise DataError(f"{path}: is {width} x {height} pixels, not {SIDE} x {SIDE}")
    return pixels.transpose(2, 0, 1)


def _key(files: Sequence[Path], folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        try:
            found = path.stat()
        except OSError as error:
            raise DataError(f"{path}: no such file; fetch the data set again") from error
        name = os.path.relpath(path, folder)
        digest.update(f"{name}/{found.st_size}/{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _kept(folder: Path, key: str, count: int) -> np.ndarray | None:
    for path in folder.glob(f"decoded-{key}-*.npy"):
        with contextlib.suppress(OSError, ValueError, EOFError):
            images = np.load(path, allow_pickle=False)
            whole = images.shape == (count, 3, SIDE, SIDE) and images.dtype == np.uint8
            if whole and path == _place(images, folder, key):
                return images
    return None


def _keep(images: np.ndarray, folder: Path, key: str) -> None:
    place = _place(images, folder, key)
    fresh = place.with_suffix(f".{os.getpid()}")
    with fresh.open("wb") as file:
        np.save(file, images)
    fresh.replace(place)


def _place(images: np.ndarray, folder: Path, key: str) -> Path:
    return folder / f"decoded-{key}-{zlib.crc32(images.data):08x}.npy"
