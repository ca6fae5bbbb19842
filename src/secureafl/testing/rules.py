"""What the checks of all plug-ins share: states, tensors, reads on the host, determinism."""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secureafl.core.errors import SecureAflError

_TYPES = "give a tensor, or a (named) tuple of them; () if there is nothing to keep"
_NO_VALUES = (NotImplementedError, RuntimeError)  # what torch raises where a value is missing


class ContractError(SecureAflError):
    """A plug-in breaks the contract; the message is one line: what it does, and the remedy.

    >>> class Forgetful(secureafl.defenses.AsyncSgd):
    ...     def init(self, num_clients, weights): return None
    >>> secureafl.testing.check_defense(Forgetful())
    Traceback (most recent call last):
    secureafl.testing.rules.ContractError: Forgetful.init: the state is None; give a tensor, ...
    """


def demand(holds: bool, where: str, what: str, remedy: str) -> None:
    """Raise a `ContractError` of one line unless `holds`."""
    if not holds:
        raise ContractError(f"{where}: {what}; {remedy}")


def in_one_line(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """The check of a plug-in, which also tells in one line what the plug-in itself raises."""

    @functools.wraps(check)
    def checked(plug_in: Any) -> None:
        try:
            check(plug_in)
        except SecureAflError:
            raise
        except Exception as error:  # code of the user's may raise anything
            said = " ".join(f"{type(error).__name__}: {error}".split())
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}, line {last.lineno}"
            told = f"{type(plug_in).__name__}: it raises {said} ({where})"
            raise ContractError(f"{told}; no method may raise") from error

    return checked


def check_kind(plug_in: Any, protocol: type, name: str) -> str:
    """Raise unless the object is a frozen dataclass with the protocol's methods; its name."""
    example = f"give the object itself, as {name}(MyClass())"
    demand(not isinstance(plug_in, str), name, f"{plug_in!r} is a text", example)
    demand(not isinstance(plug_in, type), name, f"{plug_in!r} is a class", example)
    own = type(plug_in).__name__
    wanted = [m for m in _members(protocol) if not hasattr(plug_in, m)]
    demand(not wanted, own, f"it lacks {', '.join(wanted)}", "write every method of the protocol")
    for method in (m for m in _members(protocol) if callable(getattr(protocol, m, None))):
        found = getattr(plug_in, method)
        demand(callable(found), own, f"{method} is {found!r}", "write it as a method")
    params = getattr(plug_in, "__dataclass_params__", None)
    frozen = params is not None and params.frozen
    demand(frozen, own, "it can change while it is used", "make it a @dataclass(frozen=True)")
    return own


def _members(protocol: type) -> list[str]:
    names = {name for base in protocol.__mro__[:-1] for name in vars(base)}
    names |= {name for base in protocol.__mro__ for name in getattr(base, "__annotations__", {})}
    return sorted(name for name in names if not name.startswith("_"))


def form_of(state: Any, where: str, name: str = "state") -> dict[str, tuple[Any, ...]]:
    """Shape, dtype and device of every tensor of a state, by name; raises if it is no state."""
    if isinstance(state, Tensor):
        return {name: (tuple(state.shape), state.dtype, state.device.type)}
    if not isinstance(state, tuple):  # to spell out a state that is one takes longer than a step
        named = "the state" if name == "state" else name
        kind = "None" if state is None else f"{state!r}, of type {type(state).__name__}"
        raise ContractError(f"{where}: {named} is {kind}; {_TYPES}")
    fields = getattr(state, "_fields", range(len(state)))
    forms: dict[str, tuple[Any, ...]] = {}
    for field, part in zip(fields, state, strict=True):
        forms |= form_of(part, where, f"{name}.{field}")
    return forms


def check_form(before: Mapping[str, Any], state: Any, where: str) -> None:
    """Raise unless a state is built as the one that `before` was taken of."""
    after = form_of(state, where)
    parts = f"{', '.join(after) or '()'}; at first it was {', '.join(before) or '()'}"
    demand(after.keys() == before.keys(), where, f"the state is {parts}", "keep its structure")
    for name, form in after.items():
        now, old = (" ".join(map(str, form)) for form in (form, before[name]))
        remedy = "shapes, dtypes and devices of a state never change"
        demand(form == before[name], where, f"{name} is {now} and was {old}", remedy)


def check_vector(found: Any, like: Tensor, where: str) -> None:
    """Raise unless `found` is a finite tensor of the shape and dtype of `like`."""
    kind = type(found).__name__
    demand(isinstance(found, Tensor), where, f"it is of type {kind}", "give a tensor")
    now, wanted = (f"{t.dtype} {tuple(t.shape)}" for t in (found, like))
    same = found.shape == like.shape and found.dtype == like.dtype
    demand(same, where, f"it is {now}, not {wanted}", "keep shape and dtype of the gradient")
    finite = found.device.type == "meta" or bool(torch.isfinite(found).all())
    demand(finite, where, "it is not finite", "guard divisions and overflows with torch.where")


@contextmanager
def no_host_reads(where: str) -> Iterator[None]:
    """Inside, tensors on "meta" have no values, and whoever reads one gets a `ContractError`."""
    try:
        yield
    except _NO_VALUES as error:
        said = str(error).splitlines()[0]
        what = f"it reads a tensor on the host ({said})"
        remedy = "choose with torch.where, without if, float() or .item(); else on_host = True"
        raise ContractError(f"{where}: {what}; {remedy}") from None


def on_meta(tree: Any) -> Any:
    """The tensors of a state, without their values."""
    if isinstance(tree, Tensor):
        return tree.to("meta")
    parts = [on_meta(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


@contextmanager
def unchanged(shown: Mapping[str, Tensor], where: str) -> Iterator[None]:
    """Raise if the block changes one of the tensors."""
    copies = {name: tensor.clone() for name, tensor in shown.items()}
    yield
    for name, tensor in shown.items():
        same = torch.equal(tensor, copies[name])
        demand(same, where, f"it changes {name} in place", "work on a copy: x.clone()")


def check_repeats(play: Callable[[], list[Tensor]], where: str) -> None:
    """Raise unless two equal runs give equal bits, whatever torch's global generator holds."""
    runs = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            runs.append(play())
    same = all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    remedy = "draw from the generator you are given, and keep what changes in the state"
    demand(same, where, "two equal runs differ", remedy)


def fields_of(plug_in: Any) -> set[str]:
    """Names of the settings."""
    return {field.name for field in dataclasses.fields(plug_in)}
