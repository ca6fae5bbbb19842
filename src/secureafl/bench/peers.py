"""The coordinate-wise median of n vectors, by this package and by others where installed.

A peer is a function that gets the vectors and returns the call to be timed. It imports what it
needs itself: where that is missing, it raises ImportError.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from secureafl.aggregators import Median
from secureafl.bench.clock import Timing, sample
from secureafl.bench.load import SEED
from secureafl.bench.plain import sorted_median

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.bench.cases import Case

Call = Callable[[], object]


class Peer(NamedTuple):
    """A library's implementation of the median."""

    prepare: Callable[[Float[Tensor, "n d"]], Call]
    on_host: bool  # works on NumPy arrays only


def time_peer(peer: Peer, case: Case, device: torch.device) -> Timing:
    """Time of one aggregation of a vector from every client."""
    draw = torch.Generator(device).manual_seed(SEED)
    values = torch.randn(case.clients, case.parameters, generator=draw, device=device)
    return Timing(sample(peer.prepare(values), device))


def _secureafl(values: Tensor) -> Call:
    present = torch.ones(len(values), dtype=torch.bool, device=values.device)
    return lambda: Median().aggregate((), values, present)


def _torch_sort(values: Tensor) -> Call:
    return lambda: sorted_median(values)


def _torch(values: Tensor) -> Call:
    return lambda: values.median(dim=0)  # of two middle values the lower


def _numpy(values: Tensor) -> Call:
    array = values.numpy()
    return lambda: np.median(array, axis=0)


def _flower(values: Tensor) -> Call:
    found = importlib.import_module("flwr.server.strategy.aggregate")
    uploads = [([row], 1) for row in values.numpy()]
    return lambda: found.aggregate_median(uploads)


def _flower_round(values: Tensor) -> Call:
    """Flower's whole strategy step: unpack the uploads, aggregate, pack the new model."""
    common = importlib.import_module("flwr.common")
    strategy: Any = importlib.import_module("flwr.server.strategy").FedMedian()
    fine = common.Status(common.Code.OK, "")
    results = [
        (None, common.FitRes(fine, common.ndarrays_to_parameters([row]), 1, {}))
        for row in values.numpy()
    ]
    return lambda: strategy.aggregate_fit(2, results, [])  # round 1 would log a hint


YARDSTICK = "median_torch_sort"
PEERS = {
    "median_torch_sort": Peer(_torch_sort, on_host=False),
    "median_secureafl": Peer(_secureafl, on_host=False),
    "median_torch": Peer(_torch, on_host=False),
    "median_numpy": Peer(_numpy, on_host=True),
    "median_flower": Peer(_flower, on_host=True),
    "round_flower": Peer(_flower_round, on_host=True),
}
