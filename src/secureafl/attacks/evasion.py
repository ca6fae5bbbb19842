"""Uploads as harmful as a defence accepts, made with full knowledge of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from secureafl.core.server import LARGEST_NORM
from secureafl.core.traits import has_trait
from secureafl.defenses.secure_afl import SecureAfl, State, last_upload
from secureafl.linalg.quantile import passing_bound
from secureafl.linalg.vectors import choose, clipped, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackerView, Decision

# Shares of the way from the honest clients' median to a target.
_SHARES = (1.0, 0.5, 0.25, 0.1)
# Below the filter's bound: the defence's arithmetic need not round as this one does.
_MARGIN = 1e-3


def pass_filter(
    defense: SecureAfl, state: State, trained: Arrival, target: Float[Tensor, " d"]
) -> Float[Tensor, " d"]:
    """As near to the target as SecureAFL's filter lets this client come at once.

    A first upload is only clipped; after that, the way from the client's last upload is at most the
    largest factor that passes, times the way between the base models.
    """
    gradient, base, known = last_upload(state, trained)
    moved = exact_norm(trained.base - base)
    bound = passing_bound(state.factors, defense.alpha)
    free = (moved == 0) | (not defense.filter)  # without a factor everything passes
    reach = torch.where(free, torch.inf, bound * moved)
    way = (target - gradient).double()
    share = ((1 - _MARGIN) * reach / exact_norm(way)).nan_to_num(nan=1.0).clamp(max=1)
    near = (gradient.double() + share * way).to(target.dtype)
    # Where rounding is longer than the reach, the last upload once more has a factor of 0.
    near = torch.where(exact_norm(near - gradient) <= (1 - _MARGIN / 2) * reach, near, gradient)
    first = clipped(target, torch.full_like(moved, defense.clip_norm))
    return torch.where(known, near, first)


def ask_defense(
    view: AttackerView,
    honest: Arrival,
    targets: Float[Tensor, "k d"],
    median: Float[Tensor, " d"],
) -> Float[Tensor, " d"]:
    """Of uploads between the honest clients' median and the targets, the one that hurts most.

    The defence itself is asked which it accepts; the honest gradient is asked about too, and
    uploaded if none is accepted. A step hurts as far as it points against the
    median. Where an accepted upload makes no step yet, the farthest from the median is taken.
    """
    assert view.snapshot is not None
    given = (honest.gradient, targets, median)
    # A buffering defence mostly ends it with the first answer, so looking is worth the wait.
    if view.recorded is not None and not has_trait(view.snapshot.defense, "buffering"):
        return view.recorded(_most_harmful, *given)

    def decide(update: Tensor) -> Decision:
        return view.ask(honest._replace(gradient=update))

    return _most_harmful(decide, *given, look=True)


def _most_harmful(
    decide: Callable[[Tensor], Decision],
    honest: Tensor,
    targets: Tensor,
    median: Tensor,
    *,
    look: bool = False,
) -> Tensor:
    """What `ask_defense` uploads; it does not `look` at an answer on the host unless told."""
    asking = torch.ones((), dtype=torch.bool, device=honest.device)
    chosen, most = honest, honest.new_full((), -torch.inf, dtype=torch.float64)
    against = -median.double()
    for upload in _farthest_first(honest, targets, median):
        decision = decide(upload.clone())
        harm = against @ decision.direction.double()
        better = asking & decision.accepted & (harm > most)
        chosen, most = choose(better, upload, chosen), choose(better, harm, most)
        asking = asking & (~decision.accepted | decision.ready)
        if look and not asking:
            break
    return chosen


def _farthest_first(honest: Tensor, targets: Tensor, median: Tensor) -> Iterator[Tensor]:
    radius = honest.new_full((), LARGEST_NORM / 2, dtype=torch.float64)
    for share in _SHARES:
        for target in targets:
            yield clipped(median + share * (target - median), radius)
    yield clipped(median, radius)
    yield honest
