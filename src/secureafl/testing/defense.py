"""The check of a defence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secureafl.core.protocols import Defense, Remembers
from secureafl.core.traits import has_trait
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.testing.driver import CLIENTS, DIM, RATE, Driver, root_data_for
from secureafl.testing.rules import (
    check_form,
    check_kind,
    check_repeats,
    check_vector,
    demand,
    form_of,
    in_one_line,
    no_host_reads,
    unchanged,
)

_ARRIVALS = 16
_LOUD = 0.99e18  # norm; the server refuses longer uploads


@in_one_line
def check_defense(defense: Defense) -> None:
    """Raise a `ContractError` of one line if a defence would fail in a run, or on a GPU.

    It is shown honest, stale, silent, very long and non-finite uploads of five clients. Found are:
    a state that is None, is made of anything but tensors, or changes its shapes; plain values
    where a `Decision` holds tensors; a read on the host; an upload, a base or the model changed in
    place; a direction of another shape, or not finite; runs that cannot be repeated.

    >>> secureafl.testing.check_defense(secureafl.defenses.Kardam())
    """
    name = check_kind(defense, Defense, "check_defense")
    for dtype in (torch.float32, torch.float64):
        weights = torch.zeros(DIM, dtype=dtype)
        before = form_of(defense.init(CLIENTS, weights), f"{name}.init")
        _check_run(_Watched(defense, before, f"{name}.step"), dtype)
    if not has_trait(defense, "on_host"):
        _check_host_reads(defense, name)
    check_repeats(lambda: _directions(defense), f"{name}.step")


@dataclass(frozen=True)
class _Watched:
    """A defence whose every step is looked at."""

    inner: Defense
    form: dict[str, Any]
    name: str

    def init(self, num_clients: int, weights: Tensor) -> Any:
        """The defence's own."""
        return self.inner.init(num_clients, weights)

    def step(self, state: Any, arrival: Arrival, server: ServerView) -> tuple[Decision, Any]:
        """The defence's own, checked."""
        shown = {
            "arrival.gradient": arrival.gradient,
            "server.weights": server.weights,  # before the base, which may be the same tensor
            "arrival.base": arrival.base,
        }
        with unchanged(shown, self.name):
            found = self.inner.step(state, arrival, server)
        pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Decision)
        kind = type(found).__name__
        demand(pair, self.name, f"it returns a {kind}", "return (Decision(...), state)")
        decision, after = found
        _check_decision(decision, arrival, self.name)
        check_form(self.form, after, self.name)
        return decision, after

    def forget(self, state: Any, client: Tensor) -> Any:
        """The defence's own, checked."""
        if not isinstance(self.inner, Remembers):
            return state
        after = self.inner.forget(state, client)
        check_form(self.form, after, self.name.replace(".step", ".forget"))
        return after


def _check_decision(decision: Decision, arrival: Arrival, name: str) -> None:
    flags = {"accepted": decision.accepted, "ready": decision.ready}
    for field, value in flags.items():
        where = f"{name}: Decision.{field}"
        kind = f"it is {value!r}, of type {type(value).__name__}"
        remedy = "give a tensor, as torch.tensor(True, device=arrival.gradient.device)"
        demand(isinstance(value, Tensor), where, kind, remedy)
        single = value.dtype == torch.bool and value.dim() == 0
        shape = f"it is {value.dtype} {tuple(value.shape)}"
        demand(single, where, shape, "give a torch.bool without dimensions")
    check_vector(decision.direction, arrival.gradient, f"{name}: Decision.direction")
    for key, score in decision.scores.items():
        single = isinstance(score, Tensor) and score.dim() == 0
        kind = f"it is {score!r}" if not isinstance(score, Tensor) else f"{tuple(score.shape)}"
        remedy = "give a tensor without dimensions"
        demand(single, f"{name}: Decision.scores[{key!r}]", kind, remedy)
    kind = f"it is {decision.reason!r}"
    demand(isinstance(decision.reason, str), f"{name}: Decision.reason", kind, "give a text")


def _check_run(watched: _Watched, dtype: torch.dtype) -> None:
    """Honest uploads, odd ones among them, and clients that are forgotten."""
    driver = Driver(watched, dtype)
    for number in range(_ARRIVALS):
        driver.honest(number)
    weights, version = driver.state.weights, driver.state.round
    unit = torch.full_like(weights, DIM**-0.5)
    for place, odd in enumerate((torch.nan, torch.inf, 0.0, 1e-30, _LOUD, -_LOUD)):
        driver.receive(place % CLIENTS, version, odd * unit, weights)
    driver.state = driver.server.forget(driver.state, 1)
    for number in range(_ARRIVALS, 2 * _ARRIVALS):
        driver.honest(number, newest_only_before=_ARRIVALS)
    finite = bool(torch.isfinite(driver.state.weights).all())
    remedy = "bound what the state keeps of one upload"
    demand(finite, watched.name, "the model is not finite after a run", remedy)


def _check_host_reads(defense: Defense, name: str) -> None:
    weights = torch.zeros(DIM, device="meta")
    with no_host_reads(f"{name}.init"):
        state = defense.init(CLIENTS, weights)
    for part, (_, _, device) in form_of(state, f"{name}.init").items():
        where = f"it makes {part} on the {device}"
        demand(device == "meta", f"{name}.init", where, "make it on weights.device")
    number = torch.zeros((), dtype=torch.int64, device="meta")
    arrival = Arrival(number, number, torch.zeros_like(weights), torch.zeros_like(weights))
    root_data = root_data_for(defense, weights, weights.expand(CLIENTS, DIM))
    with no_host_reads(f"{name}.step"):
        defense.step(state, arrival, ServerView(number, weights, RATE, root_data))


def _directions(defense: Defense) -> list[Tensor]:
    driver = Driver(defense, seed=3)
    return [driver.honest(number).direction.clone() for number in range(_ARRIVALS)]
