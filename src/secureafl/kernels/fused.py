"""The fused CPU version of `kernels.aggregate`, compiled by Numba where that is installed."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.kernels.network import middle_network, sorting_network

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

try:
    from secureafl.kernels import fused_numba as compiled
except (ImportError, RuntimeError):  # Numba is optional, and may find no place for its cache
    compiled = None

_WORTH_IT = 1 << 20  # numbers in the memory; below, plain torch is as fast and needs no compiling


def has_fused(vectors: Tensor) -> bool:
    """Whether the fused version runs here and pays."""
    if vectors.device.type != "cpu" or vectors.numel() < _WORTH_IT:
        return False
    if compiled is None:
        _say_once()
    return compiled is not None


@functools.cache
def _say_once() -> None:
    logging.getLogger("secureafl").warning(
        "Numba is not installed: the server step is several times slower (pip install numba)"
    )


def fused_order_mean(
    vectors: Float[Tensor, "tiles n slots width"],
    shares: Float[Tensor, "n slots"],
    model: Float[Tensor, " d"],
    present: Bool[Tensor, " n"],
    first: int,
    last: int,
) -> tuple[Float[Tensor, " d"], Float[Tensor, "n slots"]]:
    """See `kernels.aggregate.combined_order_mean`."""
    tiles, num_clients, _, width = vectors.shape
    # Absent clients become as many lowest as highest values, which leaves the middle in the middle.
    absent = np.flatnonzero(~present.numpy())
    low = len(absent) // 2
    fill = np.zeros(num_clients + num_clients % 2, dtype=vectors.numpy().dtype)
    largest = np.finfo(fill.dtype).max  # not infinity: the compiler is told there is none
    fill[absent[:low]] = -largest
    fill[absent[low:]] = largest
    fill[num_clients:] = largest
    network = _network(num_clients, first + low, last + low)
    padded = np.zeros(tiles * width, dtype=fill.dtype)
    padded[: model.numel()] = model.numpy()
    assert compiled is not None
    direction, along = compiled.one_pass(
        vectors.numpy(),
        np.ascontiguousarray(shares.numpy(), dtype=fill.dtype),
        padded,
        fill,
        network,
        first + low,
        last + low,
        torch.get_num_threads(),
    )
    return torch.from_numpy(direction)[: model.numel()], torch.from_numpy(along)


def fused_inner_products(
    rows: Float[Tensor, "rows d"], model: Float[Tensor, " d"]
) -> Float[Tensor, "rows more"]:
    """See `kernels.tiles.inner_products`; sums of a tile are in the vectors' own precision."""
    assert compiled is not None
    zero = rows.numpy().dtype.type(0)
    return torch.from_numpy(compiled.inner_products(rows.numpy(), model.numpy(), zero))


def _network(num_clients: int, first: int, last: int) -> np.ndarray:
    """The comparisons that bring the wanted order statistics into place."""
    if last - first + 1 == num_clients:
        return np.empty((0, 2), dtype=np.int64)  # a mean needs no order
    size = num_clients + num_clients % 2
    if first >= size // 2 - 1 and last <= size // 2:
        return middle_network(size)
    return sorting_network(size)
