"""Grids: one experiment, and the values some of its settings take in turn.

title = "Two defences under noise"

[base]                                   # an experiment; or file = "experiment.toml"
rounds = 500

[axes]                                   # every combination is a cell
defense = ["async_sgd", { kind = "secure_afl", alpha = 0.7 }]
"training.learning_rate" = [0.01, 0.02]
seed = [0, 1, 2]
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.attacks import ATTACKS
from secureafl.core.errors import ConfigError
from secureafl.defenses import DEFENSES
from secureafl.experiment import Experiment, from_mapping, read_settings, with_settings
from secureafl.optimizers import OPTIMIZERS
from secureafl.settings import did_you_mean, find_class, short_name
from secureafl.toml import flatten, read_toml

_TABLES: dict[str, Any] = {
    "defense": DEFENSES,
    "attack": ATTACKS,
    "server_optimizer": OPTIMIZERS,
}
_LABEL_LENGTH = 80  # of one value, in the name of a cell; names of files end at 255


@dataclasses.dataclass(frozen=True)
class Grid:
    """An experiment, and the values some of its settings take in turn."""

    title: str
    base: Mapping[str, Any]  # settings, as in an experiment's file
    axes: Mapping[str, Sequence[Any]]  # values by dotted setting, such as defense.alpha

    def __post_init__(self) -> None:
        for key, values in self.axes.items():
            if not isinstance(values, list | tuple) or not values:
                raise ConfigError(f"axes.{key} = {values!r}: give a list of one value or more")

    def with_seeds(self, seeds: Sequence[int]) -> Grid:
        """The same grid with these seeds."""
        return dataclasses.replace(self, axes={**self.axes, "seed": list(seeds)})

    def cells(self, changes: Mapping[str, Any] | None = None) -> dict[str, Experiment]:
        """One experiment per combination, by name: `secure_afl-sign_flip-seed0`.

        A name says the values of the axes and nothing else: it stays when values are added. A
        kind that the base names too keeps the base's settings for it. Of `changes`, settings of a
        defence or an attack go to the cells whose defence or attack has them.
        """
        changes = changes or {}
        self._refuse_axes(changes)
        cells: dict[str, Experiment] = {}
        used: set[str] = set()
        for name, chosen in self.places().items():
            mapping = _chosen(self.base, chosen)
            fitting = {key: v for key, v in changes.items() if _fits(mapping, key)}
            used |= set(fitting)
            cells[name] = from_mapping(with_settings(mapping, fitting))
        for key in changes:
            if key not in used:
                raise ConfigError(f"unknown setting '{key}': none of the cells has it")
        return cells

    def places(self) -> dict[str, dict[str, Any]]:
        """The value each axis takes in each cell."""
        found: dict[str, dict[str, Any]] = {}
        for chosen in self._combinations():
            name = "-".join(self._label(key, value) for key, value in chosen.items()) or "run"
            if name in found:
                raise ConfigError(f"'{name}' is named twice; leave one out")
            found[name] = chosen
        return found

    def _refuse_axes(self, changes: Mapping[str, Any]) -> None:
        for key in changes:
            if any(axis == key or axis.startswith(f"{key}.") for axis in self.axes):
                raise ConfigError(f"'{key}' takes several values here; change them where they are")

    def _combinations(self) -> Iterator[dict[str, Any]]:
        """Yield all combinations, seed by seed, so that the first seeds are complete early."""
        keys = sorted(self.axes, key=lambda key: key == "seed")
        for values in itertools.product(*(self.axes[key] for key in reversed(keys))):
            yield dict(zip(keys, reversed(values), strict=True))

    def _label(self, key: str, value: Any) -> str:
        """Return the part of a cell's name that stands for a value."""
        last = key.rpartition(".")[2]
        alike = sum(axis.rpartition(".")[2] == last for axis in self.axes)
        text = _words(last if alike == 1 else key, value).replace(":", ".")
        safe = re.sub(r"[^\w.@+=-]", ".", text, flags=re.A)
        if safe == text and len(text) <= _LABEL_LENGTH:
            return text
        return f"{safe[: _LABEL_LENGTH - 9]}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def read_grid(path: Path) -> Grid:
    """Read the grid in a TOML file; without an axis of seeds, the base's seed is the only one."""
    values = read_toml(path)
    settings = {field.name for field in dataclasses.fields(Experiment)}
    if settings & set(values) and not {"base", "axes"} & set(values):
        raise ConfigError(f"{path}: one experiment, no grid; run it with 'secureafl run {path}'")
    known = [field.name for field in dataclasses.fields(Grid)]
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{path}: unknown '{key}'{did_you_mean(key, known)}")
        if key != "title" and not isinstance(value, Mapping):
            raise ConfigError(f"{path}: {key} = {value!r}: give a table, [{key}]")
    base = dict(values.get("base", {}))
    if "file" in base:
        base = _chosen(read_settings(path.parent / str(base.pop("file"))), base)
    # `defense.alpha = [...]` is a table in a table unless it is quoted; both mean the same.
    axes = {"seed": [base.get("seed", Experiment().seed)], **flatten(values.get("axes", {}))}
    return Grid(str(values.get("title", path.stem)), base, axes)


def parse_seeds(text: str) -> list[int]:
    """Parse seeds as given on a command line: `0-4`, `0,1,2` or both mixed."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not 0 <= last - first < 10_000:
            raise ConfigError(f"seeds '{text}': give them as 0-4 or 0,1,2")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds '{text}': give each of them once")
    return seeds


def cross(
    values: Mapping[str, Any],
    defenses: Sequence[str],
    attacks: Sequence[str],
    changes: Mapping[str, Any],
) -> dict[str, Experiment]:
    """One experiment per defence and attack; without a list, the file's own is used."""
    axes = {"defense": list(defenses), "attack": list(attacks)}
    return Grid("comparison", values, {key: v for key, v in axes.items() if v}).cells(changes)


def _chosen(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The base with some settings changed; `defense` comes before `defense.alpha`."""
    out = dict(base)
    for key in sorted(values, key=lambda key: key.count(".")):
        table = {"kind": values[key]} if isinstance(values[key], str) else values[key]
        if isinstance(table, Mapping) and table.get("kind", _kind(out, key)) == _kind(out, key):
            inner = {f"{key}.{name}": v for name, v in table.items() if name != "kind"}
            out = with_settings(out, inner)
        else:
            out = with_settings(out, {key: values[key]})
    return out


def _fits(values: Mapping[str, Any], key: str) -> bool:
    part, _, setting = key.partition(".")
    kind = _kind(values, part) if part in _TABLES else None
    if not setting or not isinstance(kind, str):
        return True  # not a matter of the cell: checked with the experiment
    fields = dataclasses.fields(find_class(kind, _TABLES[part], part))
    return setting.partition(".")[0] in {field.name for field in fields}


def _kind(values: Mapping[str, Any], key: str) -> Any:
    """The kind the plug-in at this setting has, if the values or the defaults name one."""
    top, *rest = key.split(".")
    default = getattr(Experiment(), top, None)
    kind = short_name(default) if dataclasses.is_dataclass(default) and not rest else None
    found: Any = values
    for name in (top, *rest):
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found.get("kind", kind) if isinstance(found, Mapping) else found


def _words(name: str, value: Any) -> str:
    """A value as text that can be told from the setting's other values."""
    if isinstance(value, Mapping):
        settings = [_words(k, v) for k, v in sorted(value.items()) if k != "kind"]
        return "+".join([str(value.get("kind", name)), *settings])
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.:@]*", value, flags=re.A):
        return value
    return f"{name}={value}" if isinstance(value, bool | str) else f"{name}{value}"
