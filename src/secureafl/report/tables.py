"""Run folders as values: what was set, what happened, and one comparison row each."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from secureafl.core.errors import NoRunError, RunError, SecureAflError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event
from secureafl.presentation.labels import as_faced, kind, label_runs
from secureafl.runs.checksums import require_intact
from secureafl.runs.digest import Digest
from secureafl.runs.events import number, read_events
from secureafl.runs.layout import (
    EVENTS,
    EXPERIMENT,
    HOLDINGS,
    PROVENANCE,
    RESULT,
    is_deployed,
    read_json,
    require_run,
)
from secureafl.runs.summary import summarise
from secureafl.settings import refuse_old_names
from secureafl.toml import read_toml

_REMEDY = "restore the file, or leave this run out of the report"


class Arrivals(NamedTuple):
    """The uploads of a run, one entry per upload in every column."""

    round: np.ndarray
    client: np.ndarray
    malicious: np.ndarray
    accepted: np.ndarray
    reason: np.ndarray  # index into `reasons`
    lipschitz: np.ndarray  # a score is NaN where undefined
    threshold: np.ndarray
    weight: np.ndarray
    reasons: tuple[str, ...]


class Late(NamedTuple):
    """One metric over the last evaluations; NaN where undefined."""

    last: float
    mean: float
    std: float


class Summary(NamedTuple):
    """The figures of a finished run, or of an unfinished one so far."""

    metrics: dict[str, Late]  # the first is the main one
    honest: float | None  # accepted share; None without uploads
    malicious: float | None
    rounds_per_second: float | None


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder, read."""

    path: Path
    name: str
    variant: str  # the defence, told apart from the other runs
    scene: str  # the attack, told apart from the other runs
    experiment: dict[str, Any]
    provenance: dict[str, Any]
    result: dict[str, Any] | None  # None while unfinished
    evaluations: list[EvaluationEvent]
    arrivals: Arrivals
    summary: Summary
    holdings: np.ndarray | None  # samples by client and class
    digest: Digest  # the events as the dashboard sees them

    @property
    def finished(self) -> bool:
        """Whether the result was written."""
        return self.result is not None

    @property
    def deployed(self) -> bool:
        """Whether its clients are real: then nobody knows who of them is malicious."""
        return is_deployed(self.path)

    @property
    def faced(self) -> Mapping[str, Any]:
        """The experiment, with the attack its clients brought if it names none."""
        return as_faced(self.experiment, self.digest.malicious > 0, self.deployed)

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        seen = [int(self.arrivals.round.max()) + 1] if self.arrivals.round.size else []
        return max([0, *seen, *(event.round for event in self.evaluations)])

    @property
    def metric(self) -> str | None:
        """The main metric; None before the first evaluation."""
        return next(iter(self.summary.metrics), None)


class Row(NamedTuple):
    """One line of the comparison."""

    name: str
    defense: str
    attack: str
    seed: str
    rounds: int
    planned: int | None
    metric: str | None
    late: Late | None
    asr: Late | None
    honest: float | None
    malicious: float | None
    rounds_per_second: float | None
    finished: bool


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs in the given order, each once, labelled so that they can be told apart."""
    if not paths:
        raise NoRunError("no run to report on; give folders made by 'secureafl run'")
    runs = [read_run(path) for path in {path.resolve(): path for path in paths}.values()]
    labels = label_runs([run.faced for run in runs])
    names = [run.name for run in runs]
    return [
        dataclasses.replace(
            run,
            name=run.name if names.count(run.name) == 1 else str(run.path),
            variant=label.variant,
            scene=label.scene,
        )
        for run, label in zip(runs, labels, strict=True)
    ]


def read_run(path: Path) -> Run:
    """One run folder, finished or not."""
    require_run(path)
    try:
        experiment = read_toml(path / EXPERIMENT)
        refuse_old_names(experiment, path)
        provenance = read_json(path / PROVENANCE)
        result = read_json(path / RESULT) if (path / RESULT).exists() else None
        for name in (EVENTS, RESULT):
            require_intact(path, result or {}, name)
        digest = Digest()
        evaluations, arrivals = _columns(read_events(path), digest)
        summary = _summarise(path, experiment, result, evaluations)
        holdings = _read_holdings(path / HOLDINGS)
    except SecureAflError as error:
        raise RunError(f"{error}; {_REMEDY}") from error
    (label,) = label_runs([as_faced(experiment, digest.malicious > 0, is_deployed(path))])
    name = path.resolve().name
    happened = (evaluations, arrivals, summary)
    return Run(path, name, *label, experiment, provenance, result, *happened, holdings, digest)


def compare(runs: Iterable[Run]) -> list[Row]:
    """The comparison table."""
    return [_row(run) for run in runs]


def _row(run: Run) -> Row:
    metrics = run.summary.metrics
    planned = run.experiment.get("rounds")
    return Row(
        name=run.name,
        defense=kind(run.experiment, "defense"),
        attack=kind(run.faced, "attack"),
        seed=str(run.experiment.get("seed", "unknown")),
        rounds=run.rounds,
        planned=planned if isinstance(planned, int) else None,
        metric=run.metric,
        late=metrics[run.metric] if run.metric else None,
        asr=metrics.get("asr") if run.metric != "asr" else None,
        honest=run.summary.honest,
        malicious=run.summary.malicious,
        rounds_per_second=run.summary.rounds_per_second,
        finished=run.finished,
    )


def _read_holdings(path: Path) -> np.ndarray | None:
    if not path.exists():
        return None  # a regression, or a run from before the file was written
    try:
        found = np.array(read_json(path)["clients"], dtype=float)
        if found.ndim != 2 or not found.size or found.min() < 0 or not np.isfinite(found).all():
            raise ValueError("no table of counts")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path}: damaged ({error})") from error
    return found


def _columns(events: Iterable[Event], digest: Digest) -> tuple[list[EvaluationEvent], Arrivals]:
    evaluations: list[EvaluationEvent] = []
    rounds, clients, reason = array("q"), array("q"), array("q")
    malicious, accepted = array("b"), array("b")
    scores = {name: array("d") for name in ("lipschitz", "threshold", "weight")}
    reasons: dict[str, int] = {}
    for event in events:
        digest.add([event])
        if isinstance(event, EvaluationEvent):
            evaluations.append(event)
        if not isinstance(event, ArrivalEvent):
            continue
        rounds.append(event.round)
        clients.append(event.client)
        malicious.append(event.malicious)
        accepted.append(event.accepted)
        reason.append(reasons.setdefault(event.reason, len(reasons)))
        for name, column in scores.items():
            column.append(number(event.scores.get(name)))
    return evaluations, Arrivals(
        round=np.array(rounds),
        client=np.array(clients),
        malicious=np.array(malicious, dtype=bool),
        accepted=np.array(accepted, dtype=bool),
        reason=np.array(reason),
        **{name: np.array(column) for name, column in scores.items()},
        reasons=tuple(reasons),
    )


def _summarise(
    path: Path,
    experiment: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    evaluations: Sequence[EvaluationEvent],
) -> Summary:
    source = path / RESULT
    try:
        if result is None:
            source = path
            result = _so_far(path, experiment, evaluations)
        return _summary(result)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(f"{source}: damaged ({type(error).__name__}: {error})") from error


def _so_far(
    path: Path, experiment: Mapping[str, Any], evaluations: Sequence[EvaluationEvent]
) -> dict[str, Any]:
    """What an unfinished run would have for a result, over its latest evaluations."""
    late = experiment.get("evaluation", {}).get("late", 5)
    rounds = {event.round for event in evaluations[-late:]}
    return summarise(read_events(path), rounds)


def _summary(result: Mapping[str, Any]) -> Summary:
    metrics = {
        name: Late(*(number(found[key]) for key in ("last", "late_mean", "late_std")))
        for name, found in result["metrics"].items()
    }
    honest, malicious = (
        _optional(result["uploads"][group]["share"]) for group in ("honest", "malicious")
    )
    return Summary(metrics, honest, malicious, _optional(result.get("rounds_per_second")))


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
