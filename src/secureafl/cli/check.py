"""`secureafl check`: whether the files of runs are as they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

import typer

from secureafl.core.errors import SecureAflError
from secureafl.runs.checksums import CHECKSUMS, FILES, find_altered
from secureafl.runs.events import read_events
from secureafl.runs.find import find_runs
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import (
    EXPERIMENT,
    HOLDINGS,
    PROVENANCE,
    RESULT,
    is_deployed,
    read_json,
)
from secureafl.toml import read_toml

_READ_BY = {EXPERIMENT: read_toml, PROVENANCE: read_json, HOLDINGS: read_json, RESULT: read_json}

EXAMPLE = "Example: secureafl check runs copies/real"


def check(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
) -> None:
    """Tell which runs are intact, and what is damaged in the others; nothing is changed.

    Exit codes: 0 all are intact, 1 some are damaged, 2 there is no run.
    """
    found = find_runs(runs)
    damaged = 0
    for run in found.runs:
        problems = _find_problems(run)
        damaged += bool(problems)
        print("\n".join(problems) or f"{run}: intact")
    print("\n".join(found.unreadable), end="")
    if damaged or found.unreadable:
        raise typer.Exit(1)


def _find_problems(run: Path) -> list[str]:
    """A line for each."""
    unreadable = dict(_find_unreadable(run))
    try:
        return [*unreadable.values(), *_find_damage(run, unreadable)]
    except SecureAflError as error:
        return [*unreadable.values(), str(error)]


def _find_unreadable(run: Path) -> Iterator[tuple[str, str]]:
    for name, read in _READ_BY.items():
        try:
            if (run / name).exists():
                read(run / name)
        except SecureAflError as error:
            yield name, str(error)


def _find_damage(run: Path, unreadable: Collection[str]) -> list[str]:
    """What is wrong with the files that can be read."""
    if RESULT in unreadable:
        return []
    if (run / RESULT).is_file():
        result = read_json(run / RESULT)
        if CHECKSUMS in result:
            readable = [name for name in (*FILES, RESULT) if name not in unreadable]
            return find_altered(run, result, readable)
    elif is_deployed(run):
        from secureafl.deployment.recovery import find_damage

        return find_damage(run)
    else:
        folder = RunFolder(run)
        try:
            if checkpoint := folder.load_checkpoint():
                folder.require_events(checkpoint)
        finally:
            folder.close()
    for _ in read_events(run):
        pass
    return []
