"""The values of settings, held to their annotations: one rule for TOML and for Python.

What means the same becomes what the annotation says: 3 for a `float` is 3.0, a list for a tuple a
tuple, a number of NumPy's one of Python's. All else is refused. So a setting can be hashed,
compared and written to a file wherever it came from.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import numbers
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from secureafl.core.errors import ConfigError, require

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def settle_types(settings: Any) -> None:
    """Hold the fields of a frozen dataclass to their annotations, in its `__post_init__`."""
    for name, value in _changed(settings, "").items():
        object.__setattr__(settings, name, value)


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass, resolved."""
    try:
        return typing.get_type_hints(cls)
    except NameError as error:  # one's own class
        remedy = "import it in the file itself, not under TYPE_CHECKING"
        raise ConfigError(f"{cls.__name__}: {error}, in an annotation; {remedy}") from None


def fitted(hint: Any, value: Any, path: str) -> Any:
    """The value as an annotation has it; `path` names the setting in messages.

    An annotation of a kind that no setting in a file can have, such as a TypeVar, takes anything.

    >>> from secureafl.core.setting_types import fitted
    >>> fitted(tuple[float, ...], [1, 2.5], "steps")
    (1.0, 2.5)
    >>> fitted(int, "3", "rounds")
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: rounds = '3': give a whole number
    """
    kind = get_origin(hint) or hint
    if kind in (types.UnionType, Union):
        return _one_of(get_args(hint), value, path)
    if kind is Literal:
        return _choice(get_args(hint), value, path)
    if kind in (tuple, list):
        return _series(hint, kind, value, path)
    if kind in _WORDS:
        return _plain(kind, value, path)
    if not isinstance(kind, type) or kind in (Any, object):
        return value
    if getattr(kind, "_is_protocol", False) and getattr(kind, "_is_runtime_protocol", False):
        _require_plug_in(kind, value, path)
    else:
        article = "a table of settings" if isinstance(value, Mapping) else type(value).__name__
        remedy = f"give {kind.__name__}(…), not {article}"
        require(isinstance(value, kind), path, value, remedy)
    return _with_fitted_fields(value, path)


def whole_number(value: object) -> int | None:
    """A whole number of any library's as Python's; None for anything else, True and False too.

    >>> from secureafl.core.setting_types import whole_number
    >>> import torch
    >>> whole_number(torch.tensor(3)), whole_number(3.0)
    (3, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # pyrefly: ignore  (whatever has no index raises)
    except TypeError:
        return None


def _changed(settings: Any, above: str) -> dict[str, Any]:
    """The fields of a dataclass whose value is not yet as its annotation has it."""
    hints, changed = annotations_of(type(settings)), {}
    for field in (field for field in dataclasses.fields(settings) if field.init):
        value = getattr(settings, field.name)
        if value is None and field.default is None:
            continue  # its author's word for nothing, whatever the annotation
        found = fitted(hints[field.name], value, above + field.name)
        if found is not value:
            changed[field.name] = found
    return changed


def _with_fitted_fields(value: Any, path: str) -> Any:
    """The dataclass itself or, if fields of it change, a copy with these; other things as is."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = _changed(value, f"{path}.")
    made = copy.copy(value) if changed else value
    for name, found in changed.items():
        object.__setattr__(made, name, found)
    return made


def _require_plug_in(protocol: type, value: Any, path: str) -> None:
    remedy = f"give an object with the methods of {protocol.__name__}"
    if isinstance(value, str) and "." not in path:
        remedy = f"give the object, or use from_mapping({{{path!r}: {value!r}}})"
    elif isinstance(value, type):
        remedy = f"that is the class; give {value.__name__}()"
    require(isinstance(value, protocol) and not isinstance(value, type), path, value, remedy)


def _one_of(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    """The value as the first annotation has it that takes it; 3 is a whole number before 3.0."""
    for hint in sorted(hints, key=lambda hint: hint is float):
        try:
            return fitted(hint, value, path)
        except ConfigError:
            continue
    wanted = [hint for hint in hints if hint is not int or float not in hints]
    raise ConfigError(f"{path} = {value!r}: give {' or '.join(map(_in_words, wanted))}")


def _choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return choice
    raise ConfigError(f"{path} = {value!r}: choose one of {', '.join(map(repr, choices))}")


def _series(hint: Any, kind: type, value: Any, path: str) -> Any:
    """A tuple or a list of values that fit."""
    inner = get_args(hint)
    require(isinstance(value, tuple | list), path, value, f"give {_in_words(hint)}")
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        require(len(value) == len(inner), path, value, f"give {len(inner)} values")
        hints = inner
    else:
        hints = (inner[0] if inner else Any,) * len(value)
    parts = zip(hints, value, strict=True)
    found = [fitted(one, part, f"{path}[{k}]") for k, (one, part) in enumerate(parts)]
    same = type(value) is kind and all(a is b for a, b in zip(found, value, strict=True))
    return value if same else kind(found)


def _plain(kind: type, value: Any, path: str) -> Any:
    """A text, a number, true or false."""
    found = value if type(value) is kind else _converted(kind, value)
    if found is None or (isinstance(found, float) and math.isnan(found)):
        raise ConfigError(f"{path} = {value!r}: give {_WORDS[kind]}")
    return found


def _converted(kind: type, value: Any) -> Any:
    """A value of another type that means one of this kind; None if it does not."""
    truth = isinstance(value, bool | np.bool_)
    if kind is bool:
        return bool(value) if truth else None
    if kind is float:
        return float(value) if isinstance(value, numbers.Real) and not truth else None
    if kind is int:
        return whole_number(value)
    return value if isinstance(value, str) else None


def _in_words(hint: Any) -> str:
    """An annotation, as a remedy names it."""
    if hint in _WORDS:
        return _WORDS[hint]
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind in (tuple, list):
        return f"a {kind.__name__}, as {hint}" if get_args(hint) else f"a {kind.__name__}"
    return "None" if hint is types.NoneType else getattr(hint, "__name__", str(hint))
