"""Frozen dataclasses from plain mappings and back, with errors a person can act on.

One rule for everything that plugs in: a value `"median"` or `{ kind = "median", … }` names an
entry of a table, `kind = "my_module:MyClass"` a class of the user's own, no kind at all the
default; all other keys are fields.

A class may name some of its settings: `presets = {"stealth": {"factor": 1.0}}`, as a plain
attribute. `"scaling@stealth"` starts from these, `"scaling@paper"` from the defaults; fields that
are given as well win.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import sys
import traceback
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.core.setting_types import annotations_of, fitted

Table = Mapping[str, type]

_IMPORTED: ContextVar[Collection[str] | None] = ContextVar("imported", default=None)

DEFAULTS = "paper"  # the preset that is no change

# Settings of earlier versions, by what they are called now.
RENAMED = {"weights": "client_weighting", "trusted_samples": "root_samples"}


def build(cls: type, given: Mapping[str, Any], tables: Mapping[type, Table], path: str = "") -> Any:
    """An instance of the dataclass `cls` with the fields in `given`; `path` is for messages.

    Args:
        cls: The dataclass.
        given: Field values as TOML gives them.
        tables: For each protocol a field may be typed with, the implementations by name.
        path: Dotted name of this value inside the file.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path or 'settings'} = {given!r}: give a table of settings")
    hints = annotations_of(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    values = {}
    for key, value in given.items():
        here = _join(path, str(key))
        if key not in fields:
            remedy = _deeper(key, hints, tables, path) or did_you_mean(str(key), fields)
            raise ConfigError(_unknown(here, remedy))
        if hints[key] in tables:
            values[key] = _plug_in(fields[key], hints[key], value, tables, here)
        else:
            values[key] = _value(hints[key], value, tables, here)
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(_join(path, str(error))) from None
    except TypeError as error:  # a user's own class with a field that has no default
        raise ConfigError(f"{path}: {error}") from None


def _unknown(path: str, remedy: str) -> str:
    """The message about an unknown setting; for an old name, the remedy is the new one."""
    if path in RENAMED:
        remedy = f"; it is called {RENAMED[path]!r} now"
    return f"unknown setting {path!r}{remedy}"


def _deeper(key: str, hints: Mapping[str, Any], tables: Mapping[type, Table], path: str) -> str:
    """The remedy for a setting that is one of a table further down: `training.learning_rate`."""
    for name, hint in hints.items():
        classes = tables[hint].values() if hint in tables else [hint]
        if any(dataclasses.is_dataclass(cls) and key in _names(cls) for cls in classes):
            return f"; did you mean '{_join(path, f'{name}.{key}')}'?"
    return ""


def refuse_old_names(stored: Mapping[str, Any], where: object) -> None:
    """Raise if settings that were stored by an earlier version have a name of that time."""
    for old in RENAMED:
        if old in stored:
            raise ConfigError(f"{where}: made by an earlier version; {_unknown(old, '')}")


def to_mapping(value: Any, tables: Mapping[type, Table]) -> dict[str, Any]:
    """The mapping `build` makes the same value of; every field is spelled out.

    But for None as the default, of a class of the user's own: TOML has no word for it.
    """
    out: dict[str, Any] = {}
    for field in (field for field in dataclasses.fields(value) if field.init):
        child = getattr(value, field.name)
        if child is None and _default(field) is None:
            continue
        if dataclasses.is_dataclass(child):
            named = {"kind": short_name(child)} if _plugs_in(child, tables) else {}
            child = named | to_mapping(child, tables)
        out[field.name] = _as_lists(child)
    return out


def _as_lists(value: Any) -> Any:
    """Tuples as the lists that TOML has, inside each other as well."""
    return [*map(_as_lists, value)] if isinstance(value, tuple | list) else value


def plug_in_settings(value: Any, tables: Mapping[type, Table]) -> dict[str, Any]:
    """The table that names a plug-in: its kind, and the settings that are not the defaults."""
    fields = dataclasses.fields(value)
    changed = {f.name for f in fields if getattr(value, f.name) != _default(f)}
    spelled = to_mapping(value, tables).items()
    kind = short_name(value).partition("@")[0]
    return {"kind": kind, **{name: given for name, given in spelled if name in changed}}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message about a misspelt word."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known) or 'none'}"


@contextlib.contextmanager
def only_importing(kinds: Collection[str]) -> Iterator[None]:
    """Inside, no module:Class but these is imported: the settings are a stranger's."""
    before = _IMPORTED.set(kinds)
    try:
        yield
    finally:
        _IMPORTED.reset(before)


def find_class(kind: str, table: Table, path: str) -> type:
    """The class a `kind` names: an entry of the table, or module:Class of the user's own.

    A preset at its end is passed over.
    """
    kind = kind.partition("@")[0]
    if ":" not in kind:
        if kind not in table:
            raise ConfigError(f"unknown {path} {kind!r}{did_you_mean(kind, table)}")
        return table[kind]
    allowed = _IMPORTED.get()
    if allowed is not None and kind not in allowed:
        raise ConfigError(f"{path} = {kind!r}: nothing is imported here but what was allowed")
    module, _, name = kind.partition(":")
    # A user's file lies in the folder the command runs in, which a console script does not search.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs a file of the user's, which may raise anything
        reason = _import_failure(module, name, error)
        raise ConfigError(f"{path} = {kind!r}: {reason}") from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{path} = {kind!r}: make it a frozen dataclass, its fields are settings")
    return found


def _import_failure(module: str, name: str, error: Exception) -> str:
    """Why a class was not found: where it was looked for, what is there instead, or what failed."""
    if module.endswith(".py"):
        return f"name it without .py, '{module.removesuffix('.py')}:{name}'"
    if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
        file = module.replace(".", "/") + ".py"
        return f"{error}; no {file} in {Path.cwd()}, where the command runs, nor on PYTHONPATH"
    if isinstance(error, AttributeError) and module in sys.modules:
        members = vars(sys.modules[module]).items()
        classes = [n for n, member in members if getattr(member, "__module__", "") == module]
        return f"{error}{did_you_mean(name, classes)}"
    if isinstance(error, ImportError | SyntaxError | ValueError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def short_name(value: Any) -> str:
    """What a plug-in is called in results, which is also its TOML kind.

    The package's own are called like their file, `kardam`, others `my_module:MyClass`: a file may
    have several. With settings that make up a preset, its name follows: `scaling@stealth`.
    """
    cls = type(value)
    package, _, file = cls.__module__.rpartition(".")
    ours = package.partition(".")[0] == __name__.partition(".")[0]
    return (file if ours else f"{cls.__module__}:{cls.__qualname__}") + _at_preset(value)


def name_for_files(value: Any) -> str:
    """The short name without the colon, which not every file system takes."""
    return short_name(value).replace(":", ".")


def presets_of(cls: type) -> dict[str, Mapping[str, Any]]:
    """The presets of a class: the settings of each that differ from the defaults.

    A class that names any has `paper` too, which are the defaults.
    """
    own = getattr(cls, "presets", {})
    return {DEFAULTS: {}, **own} if own else {}


def _value(hint: Any, value: Any, tables: Mapping[type, Table], path: str) -> Any:
    if not dataclasses.is_dataclass(hint):
        return fitted(hint, value, path)
    return build(typing.cast(type, hint), value, tables, path)


def _plug_in(
    field: dataclasses.Field[Any],
    protocol: type,
    value: Any,
    tables: Mapping[type, Table],
    path: str,
) -> Any:
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("kind", ""), str):
        raise ConfigError(f'{path} = {value!r}: give a name, or a table with kind = "…"')
    settings = {key: v for key, v in given.items() if key != "kind"}
    if "kind" in given:
        cls = find_class(given["kind"], tables[protocol], path)
        settings = {**_preset(cls, given["kind"], path), **settings}
    else:
        cls = type(field.default_factory())  # pyrefly: ignore  (a plug-in always has a default)
        _refuse_settings_of_others(cls, settings, tables[protocol], path)
    built = build(cls, settings, tables, path)
    if not isinstance(built, protocol):
        wanted = [m for m in dir(protocol) if not m.startswith("_") and not hasattr(built, m)]
        raise ConfigError(f"{path} = {given['kind']!r}: it lacks {', '.join(wanted)}")
    return built


def _refuse_settings_of_others(
    cls: type, settings: Mapping[str, Any], table: Table, path: str
) -> None:
    """Raise, with the kinds that have it, for a setting that the default kind does not have."""
    for key in settings:
        owners = [kind for kind, other in table.items() if key in _names(other)]
        if owners and key not in _names(cls):
            known = " or ".join(f"'{kind}'" for kind in owners)
            raise ConfigError(_unknown(_join(path, key), f"; {known} has it: name the kind too"))


def _names(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def _preset(cls: type, kind: str, path: str) -> Mapping[str, Any]:
    """The settings behind the @ of a kind."""
    _, at, name = kind.partition("@")
    presets = presets_of(cls)
    if at and name not in presets:
        known = ", ".join(presets) or "none"
        raise ConfigError(f"{path} = {kind!r}: unknown preset {name!r}; known: {known}")
    return presets[name] if at else {}


def _at_preset(value: Any) -> str:
    """The preset all settings agree with, after an @; empty for the defaults and for none."""
    presets = presets_of(type(value)).items()
    name = next((name for name, changed in presets if _is_preset(value, changed)), DEFAULTS)
    return "" if name == DEFAULTS else f"@{name}"


def _is_preset(value: Any, changed: Mapping[str, Any]) -> bool:
    fields = dataclasses.fields(value)
    return all(getattr(value, f.name) == changed.get(f.name, _default(f)) for f in fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


_PLUGS_IN: dict[tuple[type, frozenset[type]], bool] = {}


def _plugs_in(value: Any, tables: Mapping[type, Table]) -> bool:
    """Whether a value is of a kind that plugs in; asked once for each class, since that is slow."""
    key = type(value), frozenset(tables)
    if key not in _PLUGS_IN:
        _PLUGS_IN[key] = any(isinstance(value, protocol) for protocol in tables)
    return _PLUGS_IN[key]


def _join(path: str, rest: str) -> str:
    return f"{path}.{rest}" if path else rest
