"""State as named tensors and back: a state is a tensor, or a (named) tuple of states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from secureafl.linalg.vectors import choose

if TYPE_CHECKING:
    from jaxtyping import Bool


def name_tensors(state: Any, prefix: str) -> dict[str, Tensor]:
    """Every tensor of `state` under a dotted name."""
    if isinstance(state, Tensor):
        return {prefix: state}
    names = getattr(state, "_fields", range(len(state)))
    named: dict[str, Tensor] = {}
    for name, child in zip(names, state, strict=True):
        named |= name_tensors(child, f"{prefix}.{name}")
    return named


def rebuild(template: Any, prefix: str, named: Mapping[str, Tensor]) -> Any:
    """A state built like `template` with the tensors of `named`, on the template's devices.

    Shapes come from `named`: a history may have grown since the template was made.
    """
    if isinstance(template, Tensor):
        return named[prefix].to(template.device, template.dtype)
    names = getattr(template, "_fields", range(len(template)))
    children = [
        rebuild(child, f"{prefix}.{name}", named)
        for name, child in zip(names, template, strict=True)
    ]
    return _alike(template, children)


def clone(state: Any) -> Any:
    """A copy that shares no tensor with `state`, which may then be written in place."""
    if isinstance(state, Tensor):
        return state.clone()
    return _alike(state, [clone(child) for child in state])


def choose_state(flag: Bool[Tensor, ""], one: Any, other: Any) -> Any:
    """One of two states that are built alike (`linalg.vectors.choose`)."""
    if isinstance(one, Tensor):
        return choose(flag, one, other)
    return _alike(one, [choose_state(flag, *pair) for pair in zip(one, other, strict=True)])


def _alike(template: Any, children: list[Any]) -> Any:
    return type(template)(*children) if hasattr(template, "_fields") else tuple(children)
