"""`secureafl theory`: the paper's Theorem 1 on a problem whose constants are known."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: secureafl theory --seeds 0-4 --rounds 1500 --out runs/theory"


def theory(
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Such as 0-4, or 1,3,8.")] = "0-4",
    rounds: Annotated[
        int, typer.Option(metavar="ROUNDS", min=100, help="Arrivals in each run.")
    ] = 1500,
    clients: Annotated[int, typer.Option(metavar="NUMBER", min=5, help="Number of clients.")] = 20,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for the page; an earlier one is replaced."),
    ] = Path("runs/theory"),
) -> None:
    """Check the convergence bound of the paper's Theorem 1, inside its conditions and outside.

    Exits with 1 if a run inside the conditions breaks the bound or a link of its proof.
    """
    import torch

    from secureafl.reproduce.theory.cases import Scope
    from secureafl.reproduce.theory.figure import draw
    from secureafl.reproduce.theory.findings import Findings
    from secureafl.reproduce.theory.page import PAGE, headline, write
    from secureafl.sweep.grid import parse_seeds

    torch.set_num_threads(1)  # vectors this small gain nothing from more
    scope = Scope(clients, rounds)
    findings = Findings(scope, parse_seeds(seeds))
    for ahead in findings.gather(scope.cases()):
        print(f"{ahead.number}/{ahead.total} {ahead.name}", file=sys.stderr)
    report = findings.report(shlex.join(["secureafl", *sys.argv[1:]]))
    write(out, findings, report, draw(findings))
    print(f"{headline(findings)}\npage: {out / PAGE}")
    if not findings.kept:
        raise typer.Exit(1)
