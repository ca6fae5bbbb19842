"""The load on the measured servers: uploads, root data, and a memory that is already full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.defenses.secure_afl import State

SEED = 0
RATE = 0.01  # eta
SLOPE = 0.1  # clients minimise SLOPE / 2 * ||w||^2, so a gradient is SLOPE * w


class Load(NamedTuple):
    """Clients whose gradients follow a quadratic, with noise."""

    start: Tensor  # the first model
    noise: list[Tensor]

    def upload(self, number: int, weights: Tensor) -> Tensor:
        """The gradient of this upload, by its number."""
        return SLOPE * weights + self.noise[number % len(self.noise)]


def make_load(size: int, device: torch.device) -> Load:
    """Draw the load; the same numbers at every call."""
    draw = torch.Generator(device).manual_seed(SEED)
    start, *noise = (torch.randn(size, generator=draw, device=device) for _ in range(5))
    return Load(0.05 * start, [0.01 * vector for vector in noise])


@dataclass  # not frozen: the protocol's labels may be set
class Quadratic:
    """Root data (`core.protocols.RootData`) that costs next to nothing to evaluate.

    So the defence is measured, not the server's own forward and backward pass.
    """

    labels: Tensor

    def gradient(self, weights: Tensor, rows: Tensor | None = None) -> Tensor:
        """Gradient of the clients' quadratic, without noise."""
        return SLOPE * weights

    def outputs(self, weights: Tensor) -> Tensor:
        """Outputs of a model with a single class."""
        return weights.new_ones(len(self.labels), 1)


def make_root_data(device: torch.device) -> Quadratic:
    """Root data of one sample."""
    return Quadratic(torch.zeros(1, dtype=torch.int64, device=device))


def fill(state: State, size: int) -> None:
    """Fill a memory in place as if every client had uploaded often, where that would take too long.

    Base models and steps are drawn at random and gradients are SLOPE times them, so the pairs pass
    the curvature test. Adding up all inner products would take longer than the measurement: the
    tables hold what independent vectors of this length have on average. A step costs the same
    whatever the numbers are.
    """
    memory, pairs = state.memory, (state.memory.vectors.shape[2] - OWN) // 2
    vectors = memory.vectors
    vectors.normal_(generator=torch.Generator(vectors.device).manual_seed(SEED))
    steps, changes = slice(OWN, OWN + pairs), slice(OWN + pairs, None)
    for of, by in ((slice(GRADIENT, GRADIENT + 1), slice(BASE, BASE + 1)), (changes, steps)):
        torch.mul(vectors[:, :, by], SLOPE, out=vectors[:, :, of])
    beyond = len(vectors) * WIDTH - size
    vectors[-1, :, :, WIDTH - beyond :] = 0
    memory.known.fill_(True)
    memory.gram.copy_(size * _mean_products(pairs))
    memory.along.zero_()
    state.notes.appended.fill_(2 * pairs)


def _mean_products(pairs: int) -> Tensor:
    """Inner products, per coordinate, of vectors as `fill` draws them."""
    table = torch.eye(OWN + 2 * pairs, dtype=torch.float64)
    table[GRADIENT, GRADIENT] = SLOPE**2
    for step in range(OWN, OWN + pairs):
        change = step + pairs
        table[change, change] = SLOPE**2
        table[step, change] = table[change, step] = SLOPE
    return table
