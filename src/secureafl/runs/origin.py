"""Where the figures of runs come from: `provenance.json` and `result.json` are enough to tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.runs.layout import PROVENANCE, RESULT, read_json


class Origin(NamedTuple):
    """Where figures come from, of all runs together."""

    days: list[str]
    devices: list[str]
    versions: list[str]
    data: list[str]
    hours: float


def origin_of(runs: Iterable[Path]) -> Origin:
    """Collect dates, hardware, versions and data of the finished runs, each once."""
    done = [run for run in runs if (run / RESULT).is_file()]
    provenances = [read_json(run / PROVENANCE) for run in done]
    sessions = [session for one in provenances for session in one.get("sessions", [])]
    seconds = [read_json(run / RESULT).get("seconds", 0.0) for run in done]
    return Origin(
        sorted({str(s.get("started", "unknown"))[:10] for s in sessions}),
        sorted({_device(s) for s in sessions}),
        sorted({f"secureafl {s.get('secureafl')}, torch {s.get('torch')}" for s in sessions}),
        sorted({str(one.get("data")) for one in provenances}),
        math.fsum(seconds) / 3600,
    )


def _device(session: Mapping[str, Any]) -> str:
    if session.get("device") != "cpu":
        return str(session.get("device"))
    return f"CPU ({session.get('machine')}, {session.get('cpus')} cores)"
