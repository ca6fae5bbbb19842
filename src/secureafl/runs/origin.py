"""Where the figures of runs come from: `provenance.json` and `result.json` are enough to tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.runs.layout import PROVENANCE, RESULT, read_json

WHERE_MADE = ("device", "threads", "kernels", "task.data_dir")  # settings, and not of what

_CPU = "CPU"


class Origin(NamedTuple):
    """Where figures come from, of all runs together."""

    days: list[str]
    devices: list[str]
    versions: list[str]
    data: list[str]
    hours: float

    @property
    def gpus(self) -> list[str]:
        """Those of the devices that are no CPUs."""
        return [device for device in self.devices if not device.startswith(_CPU)]


def origin_of(runs: Iterable[Path]) -> Origin:
    """Collect dates, hardware, versions and data of the finished runs, each once."""
    done = [run for run in runs if (run / RESULT).is_file()]
    provenances = [read_json(run / PROVENANCE) for run in done]
    sessions = [s for run, one in zip(done, provenances, strict=True) for s in _sessions(run, one)]
    return Origin(
        sorted({str(s.get("started", "unknown"))[:10] for s in sessions}),
        sorted({_device(s) for s in sessions}),
        sorted({f"secureafl {s.get('secureafl')}, torch {s.get('torch')}" for s in sessions}),
        sorted({str(one.get("data")) for one in provenances}),
        math.fsum(map(_seconds, done)) / 3600,
    )


def _sessions(run: Path, provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = provenance.get("sessions", [])
    if isinstance(found, list) and all(isinstance(session, Mapping) for session in found):
        return found
    raise RunError(f"{run / PROVENANCE}: damaged (sessions is no list of tables)")


def _seconds(run: Path) -> float:
    try:
        return float(read_json(run / RESULT).get("seconds", 0.0))
    except (TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{run / RESULT}: damaged (seconds: {error})") from error


def _device(session: Mapping[str, Any]) -> str:
    if session.get("device") != "cpu":
        return str(session.get("device"))
    return f"{_CPU} ({session.get('machine')}, {session.get('cpus')} cores)"
