"""Poisoned uploads that the hardened SecureAFL trusts, made with full knowledge of its state.

Its weak spot is that honest clients differ. An upload that is in part the malicious client's own
gradient resembles those of honest clients with similar data, so neither the similarity penalty nor
the disagreement penalty lowers its weight. All malicious clients use the other part in the same
way: it points against the mean of the honest clients' recent updates, which changes slowly, so
that the curvature of their uploads stays inconspicuous.

How large that part may be is found with the defence's own similarity weights, as if all colluders
had uploaded such mixtures for so long that their update histories hold nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.trust import lower_median
from secureafl.kernels.operations import similarity_weights
from secureafl.linalg.rows import directions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from secureafl.core.types import AttackContext, AttackerView
    from secureafl.defenses.secure_afl_hardened import SecureAflHardened, State

_SHARES = tuple(k / 10 for k in range(10, 0, -1))  # of the poisoned part in an upload, tried
_OWN_MOMENTUM = 0.9  # of a colluder's own gradients, per upload of its own
_HONEST_MOMENTUM = 0.98  # of the honest clients' mean update, per malicious upload


class Colluders(NamedTuple):
    """What the malicious clients remember together."""

    own: Float[Tensor, "malicious d"]  # momentum of each one's own gradients
    trained: Bool[Tensor, " malicious"]  # those that have trained already
    honest: Float[Tensor, " d"]  # momentum of the honest clients' mean update


def no_colluders(context: AttackContext) -> Colluders:
    """The state before any malicious client has trained."""
    device = context.pixel_mean.device
    own = torch.zeros(context.num_malicious, context.num_parameters, device=device)
    trained = torch.zeros(context.num_malicious, dtype=torch.bool, device=device)
    return Colluders(own, trained, torch.zeros(context.num_parameters, device=device))


def blended(
    defense: SecureAflHardened,
    kept: State,
    colluders: Colluders,
    gradient: Float[Tensor, " d"],
    view: AttackerView,
    strength: float,
) -> tuple[Float[Tensor, " d"], Colluders]:
    """The upload of one malicious client: its own gradient mixed with the poisoned direction.

    It has the median client's norm. Where no honest client is known yet it is the gradient.
    """
    assert view.clients is not None
    known, malicious = kept.sent.known, view.clients.malicious
    honest = known & ~malicious
    colluders = _after(colluders, kept, honest, gradient, view.attacker_index)
    own, honest_direction = directions(torch.stack([gradient, colluders.honest]))
    share = strength * _best_share(defense, kept, colluders, malicious, -honest_direction)
    length = lower_median(kept.stats.norms, known).to(gradient.dtype)
    mixed = length * ((1 - share**2) ** 0.5 * own - share * honest_direction)
    return torch.where(honest.any(), mixed, gradient), colluders


def _after(
    colluders: Colluders, kept: State, honest: Tensor, gradient: Tensor, attacker_index: int
) -> Colluders:
    """The colluders' state after this gradient and the honest clients' present updates."""
    own, trained, before = colluders
    own[attacker_index] = torch.where(
        trained[attacker_index],
        torch.lerp(gradient, own[attacker_index], _OWN_MOMENTUM),
        gradient,
    )
    trained[attacker_index] = True
    mean = honest.to(gradient.dtype) @ kept.recent_update / honest.sum().clamp(min=1)
    moved = torch.where(before.any(), torch.lerp(mean, before, _HONEST_MOMENTUM), mean)
    return Colluders(own, trained, moved)


def _best_share(
    defense: SecureAflHardened, kept: State, colluders: Colluders, malicious: Tensor, back: Tensor
) -> float:
    """The share of the poisoned part at which it reaches the step with the most weight."""
    trained = torch.zeros_like(malicious)
    trained[malicious] = colluders.trained
    known = kept.sent.known | trained
    rows = trained.nonzero()[:, 0]
    parts = torch.cat([directions(colluders.own[colluders.trained]), back[None]])
    across, among = (parts @ kept.update_history.T).double(), (parts @ parts.T).double()
    gains = []
    for share in _SHARES:
        mix = _mix(len(rows), share, among)
        gram = kept.stats.gram.clone()
        gram[rows] = mix @ across
        gram[:, rows] = gram[rows].T
        gram[rows[:, None], rows] = mix @ among @ mix.T
        weights = similarity_weights(
            gram, known, defense.similarity_penalty, defense.disagreement_penalty
        )
        gains.append(share * weights[rows].sum() / weights.sum().clamp(min=1e-30))
    return _SHARES[int(torch.stack(gains).argmax())]


def _mix(number: int, share: float, like: Tensor) -> Float[Tensor, "number parts"]:
    """Each malicious upload in terms of the colluders' own gradients and the poisoned direction."""
    own = (1 - share**2) ** 0.5 * torch.eye(number, dtype=like.dtype, device=like.device)
    return torch.cat([own, torch.full_like(own[:, :1], share)], dim=1)
