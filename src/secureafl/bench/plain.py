"""SecureAFL's server step in straightforward torch, as a baseline for comparison.

Rows per client, every estimate in memory, a sort over clients. It knows neither first uploads nor
refused ones: it is the step of a server that has heard everybody often enough.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from secureafl.bench.clock import Timing, sample
from secureafl.bench.load import RATE, SEED, SLOPE, make_load

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.bench.cases import Case


class Plain:
    """The stored vectors, oldest pair first, and the step on them: L-BFGS and median."""

    def __init__(
        self,
        gradient: Float[Tensor, "n d"],
        base: Float[Tensor, "n d"],
        steps: Float[Tensor, "n pairs d"],
        changes: Float[Tensor, "n pairs d"],
    ) -> None:
        self.gradient, self.base, self.steps, self.changes = gradient, base, steps, changes
        self.cross = torch.bmm(steps, changes.transpose(1, 2)).double()
        self.among = torch.bmm(steps, steps.transpose(1, 2)).double()
        self.factors: list[float] = []

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors that survive a step."""
        kept = (self.gradient, self.base, self.steps, self.changes, self.cross, self.among)
        return sum(tensor.nbytes for tensor in kept)

    def step(self, client: int, gradient: Tensor, base: Tensor, weights: Tensor) -> Tensor:
        """The direction for one arrival."""
        step, change = base - self.base[client], gradient - self.gradient[client]
        self.factors.append(float(change.norm() / step.norm()))
        torch.quantile(torch.tensor(self.factors), 0.8)
        values = self._estimates(weights)
        values[client] = gradient
        self.gradient[client], self.base[client] = gradient, base
        self.steps[client] = torch.cat([self.steps[client, 1:], step[None]])
        self.changes[client] = torch.cat([self.changes[client, 1:], change[None]])
        self.cross[client] = (self.steps[client] @ self.changes[client].T).double()
        self.among[client] = (self.steps[client] @ self.steps[client].T).double()
        return sorted_median(values)

    def _estimates(self, weights: Tensor) -> Tensor:
        drift = weights - self.base
        steps, changes, cross, among = self.steps, self.changes, self.cross, self.among
        mu = (cross[:, -1, -1] / among[:, -1, -1])[:, None]
        lower = torch.tril(cross, -1)
        diagonal = torch.diag_embed(cross.diagonal(dim1=1, dim2=2))
        top = torch.cat([-diagonal, lower.transpose(1, 2)], dim=2)
        bottom = torch.cat([lower, mu[:, :, None] * among], dim=2)
        along = torch.cat([changes, steps], dim=1).bmm(drift[:, :, None])[:, :, 0].double()
        along[:, steps.shape[1] :] *= mu
        solved = torch.linalg.solve(torch.cat([top, bottom], dim=1), along).to(drift.dtype)
        of_changes, of_steps = solved.chunk(2, dim=1)
        mu = mu.to(drift.dtype)
        correction = mu * drift - torch.bmm(of_changes[:, None], changes)[:, 0]
        correction -= mu * torch.bmm(of_steps[:, None], steps)[:, 0]
        cap = 0.5 * self.gradient.norm(dim=1) / correction.norm(dim=1)
        return self.gradient + cap.clamp(max=1)[:, None] * correction


def sorted_median(values: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Mean of the two middle values, or the middle one, in every coordinate."""
    ordered = values.sort(dim=0).values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def random_plain(case: Case, device: torch.device) -> Plain:
    """A memory of clients whose gradients follow a quadratic, at random models."""
    assert case.buffer
    draw = torch.Generator(device).manual_seed(SEED)
    base = torch.randn(case.clients, case.parameters, generator=draw, device=device)
    shape = (case.clients, case.buffer, case.parameters)
    steps = torch.randn(shape, generator=draw, device=device)
    return Plain(SLOPE * base, base, steps, SLOPE * steps)


def time_plain(case: Case, device: torch.device) -> Timing:
    """Time of an arrival in the plain version, with its step on the model."""
    load, plain = make_load(case.parameters, device), random_plain(case, device)
    weights, numbers = load.start, itertools.count()

    def arrive() -> None:
        nonlocal weights
        number = next(numbers)
        gradient = load.upload(number, weights)  # nothing beside the step itself
        weights = weights - RATE * plain.step(number % case.clients, gradient, weights, weights)

    return Timing(sample(arrive, device), plain.state_bytes)
