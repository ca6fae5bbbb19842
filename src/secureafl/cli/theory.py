"""`secureafl theory`: the paper's Theorem 1 on a problem whose constants are known."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from secureafl.core.errors import ConfigError

EXAMPLE = "Example: secureafl theory --seeds 0-4 --rounds 1500 --out runs/theory"


def theory(
    seeds: Annotated[str, typer.Option(help="Such as 0-4, or 1,3,8.")] = "0-4",
    rounds: Annotated[int, typer.Option(min=100, help="Arrivals in each run.")] = 1500,
    clients: Annotated[int, typer.Option(min=5, help="Number of clients.")] = 20,
    out: Annotated[
        Path, typer.Option(help="Folder for the page; an earlier one is replaced.")
    ] = Path("runs/theory"),
) -> None:
    """Check the convergence bound of the paper's Theorem 1, inside its conditions and outside.

    Exits with 1 if a run inside the conditions breaks the bound or a link of its proof.
    """
    import torch

    from secureafl.theory.cases import Scope
    from secureafl.theory.figure import draw
    from secureafl.theory.findings import Findings
    from secureafl.theory.page import PAGE, headline, write

    torch.set_num_threads(1)  # vectors this small gain nothing from more
    scope = Scope(clients, rounds)
    findings = Findings(scope, read_seeds(seeds))
    for ahead in findings.gather(scope.cases()):
        print(f"{ahead.number}/{ahead.total} {ahead.name}", file=sys.stderr)
    report = findings.report(shlex.join(["secureafl", *sys.argv[1:]]))
    write(out, findings, report, draw(findings))
    print(f"{headline(findings)}\npage: {out / PAGE}")
    if not findings.kept:
        raise typer.Exit(1)


def read_seeds(text: str) -> list[int]:
    """Numbers with commas between, or ranges such as 0-4."""
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"--seeds {text}: give numbers, such as 0-4 or 1,3,8")
        seeds += range(int(first), int(last if dash else first) + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: give each seed once, ranges upwards")
    return seeds
