"""Experiments and their settings as they are given on the command line."""

from __future__ import annotations

from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.settings import did_you_mean
from secureafl.toml import parse_value

EXPERIMENTS = "experiments"


def settings_given(
    plain: dict[str, Any], data_dir: str | None, set_: list[str] | None
) -> dict[str, Any]:
    """The options of the command line as dotted settings."""
    changes = {k: str(v) if isinstance(v, StrEnum) else v for k, v in plain.items()}
    changes = {key: value for key, value in changes.items() if value is not None}
    if data_dir is not None:
        changes["task.data_dir"] = data_dir
    for item in set_ or []:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item}: give KEY=VALUE, such as defense.alpha=0.7")
        changes[key.strip()] = parse_value(text)
    return changes


def find_file(given: Path) -> Path:
    """The file of this name or, if there is none, the experiment that ships with the package.

    `quick` and `experiments/quick.toml` both name one that ships, wherever the command runs.
    """
    named = len(given.parts) == 1 and not given.suffix
    if given.exists() or not (named or given.parts[0] == EXPERIMENTS):
        return given
    shipped = _shipped()
    name = given.as_posix() if named else given.relative_to(EXPERIMENTS).with_suffix("").as_posix()
    if name not in shipped:
        remedy = did_you_mean(name, shipped)
        raise ConfigError(f"{given}: no such file, and no experiment that ships{remedy}")
    return shipped[name]


def _shipped() -> dict[str, Path]:
    """The experiments of this installation: inside an installed package, beside it in a clone."""
    package = Path(str(resources.files("secureafl")))
    folders = (package / EXPERIMENTS, package.parents[1] / EXPERIMENTS)
    folder = next(filter(Path.is_dir, folders), folders[0])
    files = sorted(folder.rglob("*.toml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
