"""IDX files, the format MNIST and its relatives come in, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from secureafl.core.errors import DataError

_UNSIGNED_BYTE = 0x08
_LARGEST = 1 << 31  # bytes; a damaged header must not ask for more


def find_idx(folder: Path, stem: str) -> Path | None:
    """Return the file called `stem` in `folder`, gzipped or not."""
    candidates = (folder / f"{stem}.gz", folder / stem)
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path) -> np.ndarray:
    """Read the array of unsigned bytes in an IDX file."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error
    axes = raw[3] if len(raw) > 4 else 0
    if raw[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or len(raw) < 4 + 4 * axes or axes == 0:
        raise DataError(f"{path}: not an IDX file of unsigned bytes; fetch the file again")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">i4", axes, offset=4))
    body = raw[4 + 4 * axes :]
    if min(shape) < 0 or math.prod(shape) > _LARGEST or math.prod(shape) != len(body):
        raise DataError(
            f"{path}: header says {shape}, the file holds {len(body)} bytes; fetch the file again"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)
