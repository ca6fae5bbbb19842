"""Inputs and results of the hot operations of a server step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from secureafl.kernels.tiles import products
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival


class FilterResult(NamedTuple):
    """The Lipschitz filter's decision on an upload; numbers in float64."""

    accepted: Bool[Tensor, ""]
    factor: Float[Tensor, ""]  # ||g - g_last|| / ||w_base - w_base_last||; NaN where not defined
    threshold: Float[Tensor, ""]
    scale: Float[Tensor, ""]  # factor for the upload: 1, or less for a long first one


class Selection(NamedTuple):
    """Which clients' combinations are aggregated, and by which order statistics."""

    shares: Float[Tensor, "n slots"]  # of each stored vector in its client's combination, float64
    present: Bool[Tensor, " n"]
    first: Int[Tensor, ""]  # order statistics, from 0, that are averaged in every coordinate
    last: Int[Tensor, ""]


class Step(NamedTuple):
    """A direction with its inner products and its distance from the upload, in float64."""

    direction: Float[Tensor, " d"]
    along: Float[Tensor, "n slots"]  # with every stored vector; 0 for the uploads
    with_model: Float[Tensor, ""]
    squared: Float[Tensor, ""]
    distance: Float[Tensor, ""]


def step_along(
    vectors: Float[Tensor, "tiles n slots width"],
    direction: Float[Tensor, " d"],
    weights: Float[Tensor, " d"],
    upload: Float[Tensor, " d"],
) -> Step:
    """The `Step` along a direction, in plain torch."""
    exact = direction.double()
    numbers = exact @ weights.double(), exact @ exact, exact_norm(upload - direction)
    return Step(direction, products(vectors, direction), *numbers)


def secant_inner_products(gradient: Tensor, base: Tensor, arrival: Arrival) -> tuple[Tensor, ...]:
    """The inner products of `core.types.SecantProducts`, since this gradient and base."""
    upload = arrival.gradient.double()
    step, change = (arrival.base - base).double(), (arrival.gradient - gradient).double()
    return step @ step, step @ change, change @ change, upload @ upload
