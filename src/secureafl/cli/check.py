"""`secureafl check`: whether the files of runs are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secureafl.core.errors import SecureAflError
from secureafl.runs.checksums import CHECKSUMS, find_altered
from secureafl.runs.events import read_events
from secureafl.runs.find import find_runs
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import RESULT, is_deployed, read_json

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
        try:
            problems = _find_problems(run)
        except SecureAflError as error:
            problems = [str(error)]
        damaged += bool(problems)
        print("\n".join(problems) or f"{run}: intact")
    print("\n".join(found.unreadable), end="")
    if damaged or found.unreadable:
        raise typer.Exit(1)


def _find_problems(run: Path) -> list[str]:
    if (run / RESULT).is_file():
        result = read_json(run / RESULT)
        if CHECKSUMS in result:
            return find_altered(run, result)
    elif is_deployed(run):
        from secureafl.deployment.recovery import find_damage

        return find_damage(run)
    else:
        folder = RunFolder(run)
        try:
            folder.load_checkpoint()
        finally:
            folder.close()
    for _ in read_events(run):
        pass
    return []
