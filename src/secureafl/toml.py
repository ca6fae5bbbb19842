"""TOML, read with the standard library and written for what an experiment can hold.

Every run writes its experiment, also where nothing can be installed, so the writer is here.
"""

from __future__ import annotations

import json
import numbers
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


_FEW, _WIDE = 3, 60  # settings that are named where there may be many; letters of a value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of nested tables under its dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Which settings two tables have otherwise, in words: the first of them, and how many more.

    >>> from secureafl.toml import differences
    >>> differences({"seed": 1, "task": {"kind": "digits"}}, {"seed": 5})
    "seed is 1 there and 5 here, task.kind is 'digits' there and missing here"
    """
    one, other = flatten(there), flatten(here)
    keys = [key for key in {**one, **other} if _told(one, key) != _told(other, key)]
    told = [f"{key} is {_told(one, key)} there and {_told(other, key)} here" for key in keys]
    more = [f"{len(told) - _FEW} more"] if len(told) > _FEW else []
    return ", ".join([*told[:_FEW], *more])


def _told(values: Mapping[str, Any], key: str) -> str:
    text = repr(values[key]) if key in values else "missing"
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."


def parse_value(text: str) -> Any:
    """The value of `key=text` on a command line; a bare word is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def write_toml(values: Mapping[str, Any]) -> str:
    """Plain values first, then one [table] each; tables inside tables are written inline."""
    plain = [_line(k, v) for k, v in values.items() if not isinstance(v, Mapping)]
    tables = [
        "\n".join([f"\n[{_key(name)}]", *(_line(k, v) for k, v in table.items())])
        for name, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n".join([*plain, *tables]) + "\n"


def on_one_line(plug_in: Mapping[str, Any]) -> str:
    """A plug-in's table for people: its kind, and its settings in brackets.

    >>> from secureafl.toml import on_one_line
    >>> on_one_line({"kind": "sign_flip", "factor": 4.0})
    'sign_flip (factor = 4.0)'
    """
    settings = ", ".join(f"{key} = {value}" for key, value in plug_in.items() if key != "kind")
    return f"{plug_in['kind']} ({settings})" if settings else str(plug_in["kind"])


def _line(key: str, value: Any) -> str:
    try:
        return f"{_key(key)} = {inline(value)}"
    except TypeError as error:
        raise ConfigError(f"{key} = {value!r}: {error}") from None


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else inline(key)


def inline(value: Any) -> str:
    """A value as TOML has it behind a key, on one line.

    >>> from secureafl.toml import inline
    >>> inline({"kind": "sign_flip", "factor": 4.0})
    '{ kind = "sign_flip", factor = 4.0 }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, str):
        # JSON strings are TOML strings, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    # NumPy's numbers too, which call themselves np.float64(0.1).
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    raise TypeError("TOML holds texts, numbers, true or false, lists and tables")
