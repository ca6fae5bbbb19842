"""Trust in clients on a GPU (`gpu_trust.cu`): a few launches instead of two hundred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core.trust import TINY, TURNS
from secureafl.core.types import News
from secureafl.kernels import reference
from secureafl.kernels.gpu_source import ONE_CLIENT, blocks_for, compiled, counter_for

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import Bends
    from secureafl.core.types import Arrival
    from secureafl.core.uploads import Uploads

_MOST_CLIENTS = 512  # for one block; plain torch, which uses the whole GPU, is faster beyond
_BLOCK = 1024


def distance(upload: Tensor, direction: Tensor) -> Tensor:
    """See `kernels.operations.distance`."""
    if upload.dtype != torch.float32 or direction.dtype != torch.float32:
        return reference.distance(upload, direction)
    size, found = upload.numel(), upload.new_empty(())
    blocks = blocks_for(size, upload.device)
    sums = torch.empty(blocks, dtype=torch.float64, device=upload.device)
    given = [upload.contiguous(), direction.contiguous()]
    arguments = [*given, sums, found, counter_for(upload.device), size]
    _kernel("distance")((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return found


def compare(uploads: Uploads, arrival: Arrival) -> News:
    """See `kernels.operations.compare`."""
    device = arrival.gradient.device
    if arrival.gradient.dtype != torch.float32:
        return reference.compare(uploads, arrival)
    size, known = arrival.gradient.numel(), torch.empty_like(uploads.known[0])
    blocks = blocks_for(size, device)
    found = torch.empty(4, dtype=torch.float64, device=device)
    given = [arrival.client, arrival.gradient.contiguous(), arrival.base.contiguous()]
    given += [found.new_empty(4, blocks), known, found, counter_for(device), size]
    _kernel("compare")((blocks, 1, 1), (ONE_CLIENT, 1, 1), [*uploads, *given])
    return News(known, *found.unbind())


def take_note(
    lengths: Tensor,
    bends: Bends,
    known: Tensor,
    client: Tensor,
    news: News,
    clip_norm: float,
    shorten: bool,
    memory: float,
) -> Tensor:
    """See `kernels.operations.take_note`."""
    scale = lengths.new_empty(())
    numbers = [lengths, *bends, known, client, *news, scale]
    settings = [float(clip_norm), int(shorten), float(memory), len(lengths)]
    _kernel("take_note")((1, 1, 1), (ONE_CLIENT, 1, 1), [*numbers, *settings])
    return scale


def standing(gram: Tensor, known: Tensor, crowding: float, approval: float) -> Tensor:
    """See `kernels.operations.standing`."""
    if len(gram) > _MOST_CLIENTS:
        return reference.standing(gram, known, crowding, approval)
    clients, weights = len(gram), torch.empty_like(gram[0])
    arguments = [gram, known, weights, float(crowding), float(approval), clients]
    threads = min(_BLOCK, 32 * clients)
    _kernel("standing")((1, 1, 1), (threads, 1, 1), arguments, shared_mem=6 * 8 * clients)
    return weights


def _kernel(name: str) -> Any:
    return compiled("gpu_trust.cu", name, (("TURNS", TURNS), ("TINY", TINY)))
