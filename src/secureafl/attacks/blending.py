"""Poisoned uploads that trust clipping trusts, made with knowledge of its formulas.

Its weak spot is that honest clients differ. An upload that is in part the malicious client's own
gradient is explained by honest clients with similar data, agrees with no more clients than theirs
do, and changes with the model as theirs do. All malicious clients use the other part in the same
way: it points against a slow mean of the honest gradients. Uploads are as long as the longest
honest one: clipping then leaves the part of them that points away from the centre. That is an
attack from parts (`attacks.composed`); how large the poisoned part may be is found here.

It is found with the rule's own weights (`core.peers`, and `core.neighbours` if it uses them), as if
all colluders had uploaded such mixtures for so long that their update histories hold nothing else.
The server's sketch and panels are secret: inner products are exact here, and the colluders draw a
panel of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from secureafl.attacks.composed import Composed, State
from secureafl.attacks.parts import honest_clients, unit
from secureafl.core.panels import panel_size
from secureafl.kernels.cpu_peers import weights_of_known
from secureafl.linalg.rows import TINY, median_of
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView
    from secureafl.defenses.trust_clipping import TrustClipping

# Of the poisoned part in an upload, tried. With nothing of its own in it, an upload would change
# against the curvature of a loss, as the mean that it points against changes along with it.
_SHARES = tuple(k / 10 for k in range(9, 1, -1))


class Colluders(NamedTuple):
    """What the malicious clients remember together."""

    state: State  # of the attack from parts
    histories: Float[Tensor, "n d"]  # moving average of what each client trained
    share: Float[Tensor, ""]  # of the poisoned part; the smallest until the first was decided


def no_colluders(context: AttackContext) -> Colluders:
    """The state before any malicious client has trained."""
    like = context.pixel_mean
    histories = like.new_zeros(context.num_clients, context.num_parameters)
    share = like.new_tensor(_SHARES[-1], dtype=torch.float64)
    return Colluders(Composed(cover="own").init(context), histories, share)


def blended(
    colluders: Colluders, arrival: Arrival, view: AttackerView, rule: TrustClipping, strength: float
) -> tuple[Float[Tensor, " d"], Colluders]:
    """The upload of one malicious client: its own gradient mixed with the poisoned direction.

    Where no honest client is known yet it is the gradient.
    """
    share = strength * float(colluders.share)
    attack = Composed(cover="own", share=share, length="longest")
    upload, state = attack.poison_update(colluders.state, arrival, view)
    colluders = colluders._replace(state=state)
    # One looks and decides for all: about once while every client uploads, as histories change.
    return upload, _decided(colluders, view, rule) if view.attacker_index == 0 else colluders


def _decided(colluders: Colluders, view: AttackerView, rule: TrustClipping) -> Colluders:
    """The colluders' state after a further look at what every client trained."""
    assert view.clients is not None
    assert view.snapshot is not None
    before = colluders.histories
    trained = view.clients.gradients.to(before.dtype)
    first = ~before.any(dim=1, keepdim=True)
    histories = torch.where(first, trained, torch.lerp(trained, before, rule.momentum))
    honest, draws = honest_clients(view), view.generator
    members = torch.randperm(len(trained), generator=draws, device=draws.device)
    members = members[: panel_size(len(trained))].to(trained.device)
    length = median_of(exact_norm(honest.rows), honest.known)
    # In lengths of an upload: as much of a history is left as its uploads have in common.
    rows = histories[members] / torch.where(length > 0, length, 1).to(before.dtype)
    aim = -unit(colluders.state.reference).to(before.dtype)
    parts = torch.cat([rows, aim[None]])
    products = (parts @ parts.T).double().cpu().numpy()

    def of_members(numbers: Tensor) -> np.ndarray:  # a few dozen, for many short operations
        return numbers[members].cpu().numpy()

    who = of_members(view.clients.known), of_members(view.clients.malicious)
    trust = of_members(view.snapshot.state.standing.trust) if rule.neighbours else None
    share = _best_share(products, *who, trust)
    return colluders._replace(histories=histories, share=torch.full_like(colluders.share, share))


def _best_share(
    products: Float[np.ndarray, "parts parts"],
    known: Bool[np.ndarray, " members"],
    malicious: Bool[np.ndarray, " members"],
    trust: Float[np.ndarray, " members"] | None,
) -> float:
    """The share of the poisoned part at which it reaches the model with the most weight.

    The products are those of the members' histories, and of the poisoned direction as the last.
    With the `trust` in the members, neighbours judge too.
    """
    if not known.any():
        return _SHARES[0]
    gains, theirs = [], malicious[known]
    for share in _SHARES:
        mix = np.eye(len(known), len(products))
        mix[malicious] *= math.sqrt(1 - share**2)
        mix[malicious, -1] = share
        gram = mix[known] @ products @ mix[known].T
        weights = weights_of_known(gram, len(known), None if trust is None else trust[known])
        gains.append(share * weights[theirs].sum() / max(weights.sum(), TINY))
    return _SHARES[int(np.argmax(gains))]
