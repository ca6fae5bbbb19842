"""Trust in clients on a GPU (`gpu_trust.cu`): a few launches instead of two hundred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core import trust
from secureafl.core.trust import Weighed, remembered
from secureafl.core.types import News
from secureafl.kernels import reference
from secureafl.kernels.gpu_source import ONE_CLIENT, blocks_for, compiled, counter_for

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import Doubts, Notes
    from secureafl.core.types import Arrival
    from secureafl.core.uploads import Uploads

_MOST_CLIENTS = 512  # for one block; plain torch, which uses the whole GPU, is faster beyond
_BLOCK = 1024


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
    notes: Notes,
    known: Tensor,
    client: Tensor,
    news: News,
    clip_norm: float,
    shorten: bool,
    memory: float,
) -> Tensor:
    """See `kernels.operations.take_note`."""
    scale = notes.lengths.new_empty(())
    numbers = [notes.lengths, *notes.constancy, *notes.bends, known, client, *news, scale]
    settings = [float(clip_norm), int(shorten), float(memory), len(known)]
    _kernel("take_note")((1, 1, 1), (ONE_CLIENT, 1, 1), [*numbers, *settings])
    return scale


def remember(
    sent: Uploads,
    word: Tensor,
    record: Tensor,
    arrival: Arrival,
    heard: Tensor,
    scale: Tensor,
    word_memory: float,
    record_memory: float,
) -> Tensor:
    """See `kernels.operations.remember`."""
    rows, memories = (sent, word, record), (float(word_memory), float(record_memory))
    if word.dtype != torch.float32:
        return reference.remember(*rows, arrival, heard, scale, *memories)
    mine = torch.empty_like(word[0])
    given = [arrival.client, arrival.gradient.contiguous(), arrival.base.contiguous(), heard, scale]
    arguments = [sent.gradient, sent.base, word, record, *given, mine, *memories, len(mine)]
    blocks = blocks_for(len(mine), word.device)
    _kernel("remember")((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return mine


def standing(gram: Tensor, known: Tensor, crowding: float, approval: float) -> Tensor:
    """See `kernels.operations.standing`."""
    if len(gram) > _MOST_CLIENTS:
        return reference.standing(gram, known, crowding, approval)
    clients, weights = len(gram), torch.empty_like(gram[0])
    arguments = [gram, known, weights, float(crowding), float(approval), clients]
    threads = min(_BLOCK, 32 * clients)
    _kernel("standing")((1, 1, 1), (threads, 1, 1), arguments, shared_mem=6 * 8 * clients)
    return weights


def weigh(notes: Notes, known: Tensor, client: Tensor, products: Tensor, doubts: Doubts) -> Weighed:
    """See `kernels.operations.weigh`."""
    clients = len(known)
    if clients > _MOST_CLIENTS or products.dtype != torch.float32:
        return reference.weigh(notes, known, client, products, doubts)
    found, shares = notes.fresh.new_empty(2), torch.empty_like(products)
    numbers = [notes.gram, notes.fresh, *notes.constancy, *notes.bends, known, client, products]
    settings = [float(doubts.fading), float(doubts.crowding), float(doubts.approval)]
    settings += [int(doubts.constancy), int(doubts.bending), remembered(doubts.memory), clients]
    room = 7 * 8 * clients + clients
    threads = (min(_BLOCK, 32 * clients), 1, 1)
    _kernel("weigh")((1, 1, 1), threads, [*numbers, found, shares, *settings], shared_mem=room)
    return Weighed(found[0], found[1], shares)


_NUMBERS = ("TURNS", "TINY", "CENTRAL", "SILENT", "SAYS", "DOUBT", "LEAST", "ENOUGH", "SEEN", "FEW")


def _kernel(name: str) -> Any:
    return compiled("gpu_trust.cu", name, tuple((key, getattr(trust, key)) for key in _NUMBERS))
