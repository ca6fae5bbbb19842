"""Cut the class-balanced slice of Fashion-MNIST that ships with the package.

    python scripts/make_slice.py /usr/share/datasets/fashion-mnist

takes the first 1,000 training and 200 test images of each class, in their original order.
"""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np

from secureafl.tasks.fashion_mnist import EMBEDDED
from secureafl.tasks.idx import find_idx, read_idx


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write unsigned bytes as gzipped IDX, the same bytes at every run."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0))


def main() -> None:
    """Cut both parts."""
    source = Path(sys.argv[1])
    for part, per_class in (("train", 1000), ("t10k", 200)):
        paths = [
            find_idx(source, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels = (read_idx(path) for path in paths if path)
        rows = np.sort(np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in range(10)]))
        write_idx(EMBEDDED / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(EMBEDDED / f"{part}-labels-idx1-ubyte.gz", labels[rows])


if __name__ == "__main__":
    main()
