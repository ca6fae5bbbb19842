"""Trust clipping on a GPU (`gpu_clipping.cu`): a few launches instead of a hundred and fifty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core import clipping, curvature, server
from secureafl.core.clipping import Shares, Weights
from secureafl.core.curvature import effective_samples
from secureafl.core.panels import LARGEST_PANEL, num_panels, panel_size
from secureafl.kernels import reference
from secureafl.kernels.gpu_peers import all_weights
from secureafl.kernels.gpu_source import ONE_CLIENT, blocks_for, compiled
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.clipping import Records, Standing
    from secureafl.core.panels import Panels
    from secureafl.core.types import Arrival
    from secureafl.linalg.sketch import Sketch

_MOST_CLIENTS = 2048  # for one block, which finds medians by counting
_BLOCK = 1024


def remember_upload(
    records: Records, sketch: Sketch, centre: Tensor, arrival: Arrival, momentum: float
) -> Tensor:
    """See `kernels.operations.remember_upload`."""
    if _use_reference(records):
        return reference.remember_upload(records, sketch, centre, arrival, momentum)
    clients, size = records.last.shape
    blocks = -(-size // 32)
    exact = {"dtype": torch.float64, "device": centre.device}
    sketches, sums = torch.empty(3, size, **exact), torch.empty(4, blocks, **exact)
    position = torch.empty(3, **exact)
    given = [arrival.gradient.contiguous(), centre, arrival.base.contiguous(), *sketch]
    arguments = [*given, sketches, sums, len(centre)]
    _kernel("sketch_upload", size)((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    numbers = [records.known, records.norms, records.distances, records.usual, records.recent]
    numbers += [records.uploads, records.kept]
    rows = [*records.curvature, *records.whole, records.last, records.base, records.history]
    arguments = [sketches, sums, arrival.client, *numbers, *rows, position]
    arguments += [float(momentum), blocks, clients]
    _kernel("remember_upload", size)((1, 1, 1), (_BLOCK, 1, 1), arguments)
    return position


def call_panel(panels: Panels, every: int) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.call_panel`."""
    clients = len(panels.order)
    if clients > _MOST_CLIENTS:
        return reference.call_panel(panels, every)
    size = panel_size(clients)
    members, due = panels.order.new_empty(size), panels.order.new_empty((), dtype=torch.bool)
    arguments = [*panels, members, due, every, size, num_panels(clients), clients]
    _kernel("call_panel")((1, 1, 1), (_BLOCK, 1, 1), arguments)
    return members, due


def judge_clients(
    records: Records,
    trust: Tensor,
    members: Tensor,
    due: Tensor,
    momentum: float,
    neighbours: bool = False,
) -> None:
    """See `kernels.operations.judge_clients`."""
    given = records, members, due, momentum, trust if neighbours else None
    both = None if _use_reference(records) else _by_peers(*given)
    if both is None:
        reference.judge_clients(records, trust, members, due, momentum, neighbours)
        return
    weights, by_peers = both
    forgiving = clipping.FORGIVING if neighbours else clipping.NEWS
    arguments = [records.known, weights, by_peers, members, due, trust, forgiving]
    arguments += by_peers.shape
    _kernel("renew_trust")((1, 1, 1), (ONE_CLIENT, 1, 1), arguments)


def _by_peers(
    records: Records, members: Tensor, due: Tensor, momentum: float, trust: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Weights of all clients from their own records, and of each member from those of others."""
    weights, left = torch.empty_like(records.kept), torch.empty_like(records.known)
    arguments = [records.known, records.kept, *records.curvature, *records.whole, due]
    arguments += [weights, left, effective_samples(momentum), len(left)]
    _kernel("weigh_records")((1, 1, 1), (_BLOCK, 1, 1), arguments)
    by_peers = all_weights(records.history, members, left, due, trust)
    return None if by_peers is None else (weights, by_peers)


def take_step(
    records: Records, standing: Standing, centre: Tensor, arrival: Arrival, position: Tensor
) -> tuple[Weights, Tensor]:
    """See `kernels.operations.take_step`."""
    weights, shares = _weigh_step(records, standing, arrival.client, position)
    return weights, _move_centre(centre, arrival.gradient, shares)


def _weigh_step(
    records: Records, standing: Standing, client: Tensor, position: Tensor
) -> tuple[Weights, Shares]:
    if _use_reference(records):
        return clipping.weigh_step(records, standing, client, position)
    clients, flags = len(records.known), records.known.new_empty(2)
    found = records.kept.new_empty(6)
    arguments = [records.known, records.norms, records.distances, records.recent]
    arguments += [records.uploads, *standing, client, *position.unbind()]
    threads = min(_BLOCK, 32 * -(-clients // 32))
    _kernel("weigh_step")((1, 1, 1), (threads, 1, 1), [*arguments, found, flags, clients])
    weights = Weights(found[0], found[1], flags[0], flags[1])
    return weights, Shares(found[2:4], found[4:])


def _move_centre(centre: Tensor, upload: Tensor, shares: Shares) -> Tensor:
    if centre.dtype != torch.float32:
        return clipping.move_centre(centre, upload, shares)
    direction, blocks = torch.empty_like(centre), blocks_for(len(centre), centre.device)
    given = [centre, upload.contiguous(), *shares, direction]
    arguments = [*given, len(centre)]
    _kernel("take_step")((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return direction


def _use_reference(records: Records) -> bool:
    return len(records.known) > _MOST_CLIENTS or records.last.dtype != torch.float32


_CONSTANTS = (
    *((curvature, key) for key in ("MIN_OBSERVATIONS", "MIN_CURVATURE", "FULL_CURVATURE")),
    *((clipping, key) for key in ("CREDIT", "CUT", "SPARED", "NEWS", "PACE", "SAVED", "RATE")),
    *((clipping, key) for key in ("SHORTEST", "TOWARDS", "COUNTED", "ROUNDING", "GROWTH", "ALONE")),
    (clipping, "WARM_UP"),
    (server, "LARGEST_NORM"),
)


def _kernel(name: str, sketched: int = 1) -> Any:
    numbers = tuple((key, getattr(module, key)) for module, key in _CONSTANTS)
    numbers += (("SKETCHED", sketched), ("TINY", TINY), ("LARGEST_PANEL", LARGEST_PANEL))
    return compiled("gpu_clipping.cu", name, numbers)
