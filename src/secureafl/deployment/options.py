"""The table [deployment] of an experiment file: what a server must know beside the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from secureafl import settings
from secureafl.core.errors import require
from secureafl.experiment import Experiment, from_mapping, read_settings

TABLE = "deployment"


@dataclass(frozen=True)
class Options:
    """How the server treats its clients. How many there may be is the experiment's `clients`."""

    deadline: float = 600.0  # seconds until an answer is no longer waited for
    answers_per_minute: int = 60  # of one client; whoever is faster has to wait
    poll_seconds: float = 0.25  # between two looks for answers
    metrics_port: int = 0  # of /metrics and /health, on the server's own machine only; 0: none
    min_free_mb: int = 256  # room on the disk below which no update is taken
    tell_clients: Literal["summary", "decisions"] = "summary"  # what clients learn of decisions

    def __post_init__(self) -> None:
        require(self.deadline > 0, "deadline", self.deadline, "give seconds above 0")
        rate = self.answers_per_minute
        require(rate >= 1, "answers_per_minute", rate, "give 1 or more")
        poll = self.poll_seconds
        require(0 < poll <= 60, "poll_seconds", poll, "give seconds above 0, at most 60")
        port = self.metrics_port
        require(0 <= port < 65536, "metrics_port", port, "give a port, or 0 for none")
        room = self.min_free_mb
        require(room >= 0, "min_free_mb", room, "give 0 or more")


def read_file(path: Path) -> tuple[Experiment, Options]:
    """The experiment in a TOML file, and how it is to be deployed."""
    values = read_settings(path)
    options = settings.build(Options, values.pop(TABLE, {}), {}, TABLE)
    return from_mapping(values), options
