"""Experiments that ship with the package, by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from secureafl.core.errors import ConfigError
from secureafl.runs.layout import is_run
from secureafl.settings import did_you_mean

EXPERIMENTS = "experiments"


def find_file(given: Path) -> Path:
    """The file of this name or, if there is none, the experiment that ships with the package.

    `quick` and `experiments/quick.toml` both name one that ships, whatever the working folder.
    """
    if given.is_dir():
        remedy = f"go on with 'secureafl resume {given}'" if is_run(given) else "give a TOML file"
        raise ConfigError(f"{given}: a folder; {remedy}")
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
