"""Lies that the hardened SecureAFL trusts, by who knows all of it.

Its weak spot is that honest clients differ. A liar who says half of what its own data say stands
with the honest clients of its kind, so nobody contradicts it and its crowd is a usual one; the
other half is free. All liars push that half the same way: back along what the honest clients have
been saying, which changes slowly, so that it neither bends nor unbends their loss.

How large the lie may be is tried out on the defence's own measure of trust, as if all colluders had
told it for so long that their update histories hold nothing else.
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

_LIES = tuple(k / 10 for k in range(10, 0, -1))  # the lie's share in an upload
_FADING = 0.9  # of what a colluder trained, at each of its uploads
_SLOWLY = 0.98  # of what the honest clients say, at each malicious upload


class Colluders(NamedTuple):
    """What the liars remember together."""

    own: Float[Tensor, "malicious d"]  # what each one's data say
    told: Bool[Tensor, " malicious"]  # who has trained already
    honest: Float[Tensor, " d"]  # what the honest clients have been saying


def no_colluders(context: AttackContext) -> Colluders:
    """Nobody has trained yet."""
    device = context.pixel_mean.device
    own = torch.zeros(context.num_malicious, context.num_parameters, device=device)
    told = torch.zeros(context.num_malicious, dtype=torch.bool, device=device)
    return Colluders(own, told, torch.zeros(context.num_parameters, device=device))


def blended(
    defense: SecureAflHardened,
    kept: State,
    colluders: Colluders,
    gradient: Float[Tensor, " d"],
    view: AttackerView,
    strength: float,
) -> tuple[Float[Tensor, " d"], Colluders]:
    """The upload of one of them: its own gradient and the lie, as long as the defence lets it be.

    Where no honest client is known yet it is the gradient.
    """
    assert view.clients is not None
    known, malicious = kept.sent.known, view.clients.malicious
    honest = known & ~malicious
    colluders = _after(colluders, kept, honest, gradient, view.attacker_index)
    own, honestly = directions(torch.stack([gradient, colluders.honest]))
    share = strength * _best_share(defense, kept, colluders, malicious, -honestly)
    length = lower_median(kept.stats.norms, known).to(gradient.dtype)
    lie = length * ((1 - share**2) ** 0.5 * own - share * honestly)
    return torch.where(honest.any(), lie, gradient), colluders


def _after(
    colluders: Colluders, kept: State, honest: Tensor, gradient: Tensor, attacker_index: int
) -> Colluders:
    """With what this one has trained now, and what the honest clients say now."""
    own, told, before = colluders
    own[attacker_index] = torch.where(
        told[attacker_index], torch.lerp(gradient, own[attacker_index], _FADING), gradient
    )
    told[attacker_index] = True
    said = honest.to(gradient.dtype) @ kept.recent_update / honest.sum().clamp(min=1)
    return Colluders(own, told, torch.where(before.any(), torch.lerp(said, before, _SLOWLY), said))


def _best_share(
    defense: SecureAflHardened, kept: State, colluders: Colluders, malicious: Tensor, back: Tensor
) -> float:
    """Of the lie in an upload: where trust times lie is largest."""
    told = torch.zeros_like(malicious)
    told[malicious] = colluders.told
    known = kept.sent.known | told
    lying = told.nonzero()[:, 0]
    parts = torch.cat([directions(colluders.own[colluders.told]), back[None]])
    across, among = (parts @ kept.update_history.T).double(), (parts @ parts.T).double()
    gains = []
    for share in _LIES:
        mix = _mix(len(lying), share, among)
        gram = kept.stats.gram.clone()
        gram[lying] = mix @ across
        gram[:, lying] = gram[lying].T
        gram[lying[:, None], lying] = mix @ among @ mix.T
        weights = similarity_weights(
            gram, known, defense.similarity_penalty, defense.disagreement_penalty
        )
        gains.append(share * weights[lying].sum() / weights.sum().clamp(min=1e-30))
    return _LIES[int(torch.stack(gains).argmax())]


def _mix(number: int, share: float, like: Tensor) -> Float[Tensor, "number parts"]:
    """Each liar's upload in terms of the colluders' own gradients and the lie."""
    own = (1 - share**2) ** 0.5 * torch.eye(number, dtype=like.dtype, device=like.device)
    return torch.cat([own, torch.full_like(own[:, :1], share)], dim=1)
