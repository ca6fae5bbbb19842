"""What trust from peers and from neighbours have in common, in NumPy."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

_FEW = 32  # numbers that Python sorts before NumPy has begun


def cosines(products: Float[np.ndarray, "n n"], smallest: float) -> Float[np.ndarray, "n n"]:
    """See `core.peers.cosines`; all clients are known."""
    scale = 1 / np.sqrt(np.maximum(np.diagonal(products), smallest))
    return products * scale[:, None] * scale


def rise(values: Any, start: float, end: float) -> Any:
    """See `linalg.rows.rise`; of an array or a number."""
    # `np.clip` takes several times as long to begin.
    return np.minimum(np.maximum((values - start) / (end - start), 0), 1)


def lower_median(values: Float[np.ndarray, " n"]) -> float:
    """See `linalg.rows.lower_median`; all values count."""
    middle = (len(values) - 1) // 2
    if len(values) <= _FEW:
        return sorted(values.tolist())[middle] if len(values) else math.inf
    return np.partition(values, middle).item(middle)


@functools.lru_cache(maxsize=16)
def diagonal(size: int, value: float) -> Float[np.ndarray, "n n"]:
    """The identity times a value: read only."""
    made = value * np.eye(size)
    made.flags.writeable = False
    return made
