"""The check of a server optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from secureafl.core.protocols import ServerOptimizer
from secureafl.core.trees import name_tensors
from secureafl.testing.driver import DIM
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

_STEPS = 8
_LONG = 1e17  # of a step, where a defence lets everything pass


@in_one_line
def check_optimizer(optimizer: ServerOptimizer) -> None:
    """Raise a `ContractError` of one line if a server optimiser would fail in a run, or on a GPU.

    It is shown usual, zero and very long steps. Found are: a state that is None, is made of
    anything but tensors, changes its shapes or is changed in place; a move of another shape, or
    not finite; a read on the host; runs that cannot be repeated.

    >>> secureafl.testing.check_optimizer(secureafl.optimizers.Adam())
    """
    name = check_kind(optimizer, ServerOptimizer, "check_optimizer")
    for dtype in (torch.float32, torch.float64):
        _moves(optimizer, dtype, name)
    weights = torch.zeros(DIM, device="meta")
    with no_host_reads(f"{name}.init"):
        state = optimizer.init(weights)
    for part, (_, _, device) in form_of(state, f"{name}.init").items():
        where = f"it makes {part} on the {device}"
        demand(device == "meta", f"{name}.init", where, "make it on weights.device")
    with no_host_reads(f"{name}.move"):
        optimizer.move(state, torch.zeros_like(weights))
    check_repeats(lambda: _moves(optimizer, torch.float32, name), f"{name}.move")


def _moves(optimizer: ServerOptimizer, dtype: torch.dtype, name: str) -> list[Tensor]:
    """What the model moves by for steps of all sizes, each looked at."""
    generator = torch.Generator().manual_seed(0)
    state: Any = optimizer.init(torch.zeros(DIM, dtype=dtype))
    form, moves = form_of(state, f"{name}.init"), []
    usual = [torch.randn(DIM, generator=generator, dtype=dtype) for _ in range(_STEPS)]
    odd = [torch.full_like(usual[0], size) for size in (0.0, 1e-30, _LONG, -_LONG)]
    for step in (*usual, *odd, *usual):
        with unchanged({"step": step, **name_tensors(state, "state")}, f"{name}.move"):
            found = optimizer.move(state, step)
        pair = isinstance(found, tuple) and len(found) == 2
        kind = type(found).__name__
        demand(pair, f"{name}.move", f"it returns a {kind}", "return (move, state)")
        move, state = found
        check_vector(move, step, f"{name}.move")
        check_form(form, state, f"{name}.move")
        moves.append(move)
    return moves
