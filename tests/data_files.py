"""Tiny data sets in the layouts the world knows them in, and the real ones where they lie ready."""

import importlib.util
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REAL = Path(__file__).parents[2] / "shared" / "data"
with_real_data = pytest.mark.skipif(
    not (REAL / "unpack.py").is_file(), reason="no real data lies beside the repository"
)


def unpacker():
    """The module that writes the real data sets."""
    spec = importlib.util.spec_from_file_location("unpack", REAL / "unpack.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_set(folder, train=30, test=10, side=28, label=None):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, side, side)))
        labels = np.arange(count) % 10 if label is None else np.full(count, label)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)


def write_pickle(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=2))


def cifar_parts(names, count, classes):
    """Random images and labels for each file name."""
    rng = np.random.default_rng(0)
    for name in names:
        yield name, rng.integers(0, 256, (count, 3072), np.uint8), np.arange(count) % classes


def write_records(path, rows, *labels):
    """The binary layout: the label bytes of a sample, then its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [np.asarray(column, np.uint8)[:, None] for column in labels]
    path.write_bytes(np.hstack([*columns, rows]).tobytes())


CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def write_cifar10(home, count=20):
    folder = home / "cifar-10-batches-bin"
    for name, rows, labels in cifar_parts(CIFAR10_FILES, count, 10):
        write_records(folder / f"{name}.bin", rows, labels)
    return folder


def write_cifar100(home, count=200):
    folder = home / "cifar-100-binary"
    for name, rows, labels in cifar_parts(("train", "test"), count, 100):
        write_records(folder / f"{name}.bin", rows, labels // 5, labels)
    return folder


def write_cifar10_pickles(home, count=20):
    folder = home / "cifar-10-batches-py"
    for name, rows, labels in cifar_parts(CIFAR10_FILES, count, 10):
        write_pickle(folder / name, {b"data": rows, b"labels": labels.tolist()})
    return folder


def write_cifar100_pickles(home, count=200):
    folder = home / "cifar-100-python"
    for name, rows, labels in cifar_parts(("train", "test"), count, 100):
        coarse, fine = (labels // 5).tolist(), labels.tolist()
        content = {b"data": rows, b"coarse_labels": coarse, b"fine_labels": fine}
        write_pickle(folder / name, content)
    return folder


def write_image(path, colour, size=(64, 64), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, "JPEG")


def write_tiny_imagenet(home, per_class=1):
    """Class k is an even grey of brightness k."""
    folder = home / "tiny-imagenet-200"
    names = [f"n{k:08d}" for k in range(200)]
    for k, name in enumerate(names):
        for i in range(per_class):
            write_image(folder / "train" / name / "images" / f"{name}_{i}.JPEG", (k, k, k))
    notes = []
    for k in (3, 199, 0):
        write_image(folder / "val" / "images" / f"val_{k}.JPEG", k, mode="L")
        notes.append(f"val_{k}.JPEG\t{names[k]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(notes))
    (folder / "wnids.txt").write_text("\n".join(reversed(names)) + "\n")
    return folder


def write_recording(folder, frames=10, size=(320, 160), header=False):
    """Frame k is an even grey of brightness 10 k, steered by k / 10."""
    lines = ["center,left,right,steering,throttle,brake,speed\n"] if header else []
    for k in range(frames):
        write_image(folder / "IMG" / f"center_{k}.jpg", (10 * k,) * 3, size)
        lines.append(f"C:\\Users\\me\\IMG\\center_{k}.jpg, left, right, {k / 10},0,0,9.5\n")
    (folder / "driving_log.csv").write_text("".join(lines))


def write_udacity(home, recordings=3, **settings):
    for r in range(recordings):
        write_recording(home / "udacity" / f"recording_{r:02d}", **settings)
    return home / "udacity"
