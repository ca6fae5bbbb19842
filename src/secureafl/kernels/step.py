"""What goes into the last part of a server step, and what comes out; and both in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from secureafl.kernels.tiles import products
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival


class FilterResult(NamedTuple):
    """What the Lipschitz filter says to an upload; numbers in float64."""

    accepted: Bool[Tensor, ""]
    factor: Float[Tensor, ""]  # ||g - g_last|| / ||w_base - w_base_last||; NaN where not defined
    threshold: Float[Tensor, ""]
    scale: Float[Tensor, ""]  # to multiply the upload with: 1, or less for a long first one


class Selection(NamedTuple):
    """Whose combinations are aggregated, and how."""

    shares: Float[Tensor, "n slots"]  # of each remembered vector, float64
    present: Bool[Tensor, " n"]
    first: Int[Tensor, ""]  # order statistics, from 0, that are averaged in every coordinate
    last: Int[Tensor, ""]


class Step(NamedTuple):
    """A direction, its inner products, and how far the upload is from it (float64)."""

    direction: Float[Tensor, " d"]
    along: Float[Tensor, "n slots"]  # with every remembered vector; 0 for the uploads
    with_model: Float[Tensor, ""]
    squared: Float[Tensor, ""]
    distance: Float[Tensor, ""]


def step_along(
    vectors: Float[Tensor, "tiles n slots width"],
    direction: Float[Tensor, " d"],
    weights: Float[Tensor, " d"],
    upload: Float[Tensor, " d"],
) -> Step:
    """A direction with its inner products."""
    exact = direction.double()
    numbers = exact @ weights.double(), exact @ exact, exact_norm(upload - direction)
    return Step(direction, products(vectors, direction), *numbers)


def moves_since(gradient: Tensor, base: Tensor, arrival: Arrival) -> tuple[Tensor, ...]:
    """The fields of `core.types.SecantProducts` after `known`, for a last gradient and base."""
    upload = arrival.gradient.double()
    step, change = (arrival.base - base).double(), (arrival.gradient - gradient).double()
    return step @ step, step @ change, change @ change, upload @ upload
