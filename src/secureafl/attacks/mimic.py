"""Mimic: everybody copies one honest client, so that its peculiar data count too much.

Nothing false is sent, so nothing can be filtered; but with unlike clients the model leans towards
one of them. In a warm-up the attackers learn the direction z in which honest gradients differ most,
by Oja's rule around their running mean, and add up each client's z'g. The client with the largest
sum is copied: during the warm-up the one that leads, afterwards always the same. One step of the
warm-up is one malicious upload; it looks at the gradient every honest client trained last.
The covers `copy` and `copies` of `composed` copy clients too, whichever, to hide an aim behind.

Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR
2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.linalg.pairwise import products_along
from secureafl.linalg.rows import masked, mean_of
from secureafl.linalg.vectors import choose, computed_if, exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """What the warm-up learns; float64, since it only adds up."""

    count: Int[Tensor, ""]  # steps of the warm-up so far
    mean: Float[Tensor, " d"]  # mu
    direction: Float[Tensor, " d"]  # z, of length 1
    scores: Float[Tensor, " n"]  # sums of z'g


@dataclass(frozen=True)
class Mimic:
    """Latest gradient of the honest client furthest along the direction of greatest variance."""

    warm_up: int = 200  # malicious uploads that the selection rests on
    strength: float = 1.0  # share of the copy in an upload; the rest is the client's own gradient

    knows = "everybody"
    recordable = True
    presets = {"stealth": {"strength": 0.5}}

    def __post_init__(self) -> None:
        strength = self.strength
        require(self.warm_up >= 1, "warm_up", self.warm_up, "give 1 or more uploads")
        require(0 < strength <= 1, "strength", strength, "give a share above 0, at most 1")

    def init(self, context: AttackContext) -> State:
        device = context.pixel_mean.device
        number = {"dtype": torch.float64, "device": device}
        direction = torch.empty(context.num_parameters, **number).normal_(
            generator=context.generator
        )
        return State(
            torch.zeros((), dtype=torch.int64, device=device),
            torch.zeros_like(direction),
            direction / exact_norm(direction),
            torch.zeros(context.num_clients, **number),
        )

    def poison_batch(
        self,
        state: State,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        return inputs, labels

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        assert view.clients is not None
        honest = view.clients.known & ~view.clients.malicious
        state = self._learnt(state, view.clients.gradients, honest)
        chosen = torch.where(honest, state.scores.abs(), -1).argmax()
        copied = row(view.clients.gradients, chosen)
        update = self.strength * copied + (1 - self.strength) * arrival.gradient
        return choose(honest.any(), update, arrival.gradient), state

    def _learnt(self, state: State, gradients: Tensor, honest: Bool[Tensor, " n"]) -> State:
        """One more step of the warm-up, if it is still on and somebody is known."""
        learning = honest.any() & (state.count < self.warm_up)
        rows = computed_if(learning, lambda: masked(gradients, honest), gradients)
        old = state.count.double() / (state.count + 1)

        def new_mean() -> Tensor:
            return old * state.mean + (1 - old) * mean_of(rows, honest)

        def new_direction() -> Tensor:
            pull = _pull(rows, honest, mean, state.direction)
            # Both lengths are 1, unless nobody differs from the mean: then there is no pull.
            return _unit(old * state.direction + (1 - old) * pull, state.direction)

        def new_scores() -> Tensor:
            return state.scores + torch.where(honest, products_along(rows, direction), 0)

        mean = computed_if(learning, new_mean, state.mean)
        direction = computed_if(learning, new_direction, state.direction)
        scores = computed_if(learning, new_scores, state.scores)
        return State(state.count + learning, mean, direction, scores)


def _pull(rows: Tensor, honest: Tensor, mean: Tensor, direction: Tensor) -> Tensor:
    """The covariance of the honest rows times the direction, at length 1."""
    along = torch.where(honest, products_along(rows, direction, mean), 0)
    # Its scale falls out; left in, squares of large gradients would overflow.
    weights = along / torch.where(along.any(), along.abs().max(), 1)
    pull = (weights.to(rows.dtype) @ (rows - mean.to(rows.dtype))).double()
    return _unit(pull, torch.zeros_like(pull))


def _unit(vector: Tensor, otherwise: Tensor) -> Tensor:
    """The vector at length 1; another one where it has no direction."""
    length = exact_norm(vector)
    return torch.where(length > 0, vector / length, otherwise)
