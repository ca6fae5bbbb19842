"""What the events of a run come to: the figures that `result.json` holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from secureafl.core.events import EvaluationEvent, Event, ForgottenEvent


def summarise(events: Iterable[Event], late_rounds: Iterable[int]) -> dict[str, Any]:
    """Final and late-mean metrics, and who was accepted, from a run's events."""
    late_rounds = set(late_rounds)
    evaluations: list[EvaluationEvent] = []
    uploads = {"honest": [0, 0], "malicious": [0, 0]}
    reasons: dict[str, int] = {}
    steps = forgotten = 0
    for event in events:
        if isinstance(event, EvaluationEvent):
            evaluations.append(event)
            continue
        if isinstance(event, ForgottenEvent):
            forgotten += 1
            continue
        group = uploads["malicious" if event.malicious else "honest"]
        group[0] += event.accepted
        group[1] += 1
        steps += event.stepped
        if event.reason:
            reasons[event.reason] = reasons.get(event.reason, 0) + 1
    late = [e for e in evaluations if e.round in late_rounds]
    return {
        "metrics": {
            name: _late_figures([e.metrics[name] for e in late])
            for name in (late[-1].metrics if late else {})
        },
        "uploads": {
            name: {"accepted": yes, "received": all_, "share": yes / all_ if all_ else None}
            for name, (yes, all_) in uploads.items()
        },
        "refused": reasons,
        "steps": steps,
        "forgotten": forgotten,
    }


def flat_figures(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of a `result.json` by one name each, as tables and trackers call them."""
    flat: dict[str, float | None] = {}
    for name, found in summary["metrics"].items():
        flat[name] = found["last"]
        flat |= {f"{name}_{late}": found[late] for late in ("late_mean", "late_std")}
    return flat | {f"{name}_accepted": x["share"] for name, x in summary["uploads"].items()}


def _late_figures(values: list[float | None]) -> dict[str, float | None]:
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return {"last": values[-1], "late_mean": None, "late_std": None}
    mean = math.fsum(finite) / len(finite)
    spread = math.hypot(*(v - mean for v in finite)) / math.sqrt(len(finite))
    return {"last": finite[-1], "late_mean": mean, "late_std": spread}
