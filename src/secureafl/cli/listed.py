"""`secureafl list`: the command; what it prints is made in `cli.listing`, which imports torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

EXAMPLE = "Example: secureafl list defenses --verbose"


class Listed(StrEnum):
    """What `secureafl list` can list."""

    defenses = "defenses"
    attacks = "attacks"
    aggregators = "aggregators"
    estimators = "estimators"
    tasks = "tasks"
    partitions = "partitions"
    arrivals = "arrivals"
    optimizers = "optimizers"


def list_(
    what: Annotated[Listed, typer.Argument(metavar="WHAT", help=f"One of {', '.join(Listed)}.")],
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also the idea, what it needs and where it is from.")
    ] = False,
) -> None:
    """List what there is, with its settings and their defaults."""
    from secureafl.cli.listing import list_table

    list_table(what.value, verbose)
