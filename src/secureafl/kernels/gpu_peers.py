"""Trust from peers on a GPU: two launches, which do nothing where none is due.

The kernels are in `gpu_products.cu` and `gpu_peers.cu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core import neighbours, peers
from secureafl.kernels import reference
from secureafl.kernels.gpu_source import ONE_CLIENT, compiled
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from torch import Tensor

_MOST = 128  # clients, whose matrices lie in the registers of one block


def peer_weights(
    history: Tensor, members: Tensor, known: Tensor, due: Tensor, trust: Tensor | None = None
) -> Tensor:
    """See `kernels.reference.peer_weights`."""
    given = history, members, known, due, trust
    weights = all_weights(*given)
    return reference.peer_weights(*given) if weights is None else weights.prod(dim=0)


def all_weights(
    history: Tensor, members: Tensor, known: Tensor, due: Tensor, trust: Tensor | None
) -> Tensor | None:
    """Of each member the weights from novelty, from groups and, with trust, from neighbours.

    Nothing where they do not fit.
    """
    clients, size = len(members), history.shape[1]
    if clients > _MOST or history.dtype != torch.float32:
        return None
    exact = {"dtype": torch.float64, "device": history.device}
    gram, work = torch.empty(clients, clients, **exact), torch.empty(5, clients, clients, **exact)
    kinds = 2 if trust is None else 3
    weights = torch.empty(kinds, clients, **exact)
    arguments = [history, members, due, gram, size]
    products = compiled("gpu_products.cu", "peer_products", (("CLIENTS", clients),))
    products((clients, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    arguments = [gram, members, known, gram if trust is None else trust, due, work, weights]
    _peer_weights(clients)((kinds, 1, 1), (1024, 1, 1), arguments)
    return weights


def _peer_weights(clients: int) -> Any:
    modules = vars(peers) | vars(neighbours)
    numbers = {key: n for key, n in modules.items() if key.isupper() and isinstance(n, int | float)}
    numbers |= {"CLIENTS": clients, "TINY": TINY}
    return compiled("gpu_peers.cu", "peer_weights", tuple(numbers.items()))
