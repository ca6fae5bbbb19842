"""Options that several commands have."""

import math
from typing import Annotated, Literal

import typer

EngineName = Literal["local", "ray", "slurm"]  # `sweep.engines.EngineName`, which needs torch
Engine = Annotated[EngineName, typer.Option(help="Where runs are computed.")]
DEVICE = typer.Option(
    metavar="DEVICE", help="Where to compute: auto, cpu, cuda, or one GPU of several, cuda:1."
)
Workers = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", min=0, help="Runs (jobs on a cluster) at a time; 0: as many as fit."
    ),
]


def _no_nan(seconds: float) -> float:
    if math.isnan(seconds):  # it is not below the least, nor above
        raise typer.BadParameter("give a number of seconds")
    return seconds


CheckpointSeconds = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0,
        callback=_no_nan,
        help="Time between checkpoints; more where saving them would slow a run down.",
    ),
]
