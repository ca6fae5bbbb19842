"""What callbacks that keep runs in a tracking library share: which figures they keep, and when."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureafl.core.errors import ConfigError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event
from secureafl.runs.summary import flat_figures
from secureafl.toml import flatten
from secureafl.tracking.callback import Callback

if TYPE_CHECKING:
    from secureafl.experiment import Experiment


class Tracker(Callback, abc.ABC):
    """At each evaluation the metrics, and the shares of uploads accepted so far; then the result.

    Figures have the names that `RunResults.table` has, those of the result after `final/`;
    undefined ones are left out.
    """

    def __init__(self) -> None:
        self._runs: dict[Path, Any] = {}
        self._uploads: dict[Path, dict[str, list[int]]] = {}  # accepted, received

    @abc.abstractmethod
    def open(self, run: Path, settings: dict[str, Any]) -> Any:
        """Begin a record with all settings, by dotted names; returns what the others are given."""

    @abc.abstractmethod
    def log(self, record: Any, figures: dict[str, float], round: int) -> None:
        """Add figures as they are after so many rounds."""

    @abc.abstractmethod
    def close(self, record: Any, figures: dict[str, float], finished: bool) -> None:
        """End a record; with the figures of the result, if the run has finished."""

    def on_start(self, run: Path, experiment: Experiment) -> None:
        """Begin a record."""
        from secureafl.experiment import to_mapping

        settings = flatten(to_mapping(experiment))
        plain = {k: v if isinstance(v, int | float | str) else str(v) for k, v in settings.items()}
        self._runs[run] = self.open(run, plain)
        self._uploads[run] = {"honest": [0, 0], "malicious": [0, 0]}

    def on_event(self, run: Path, event: Event) -> None:
        """Count an upload, or log what an evaluation found."""
        groups = self._uploads[run]
        if isinstance(event, ArrivalEvent):
            group = groups["malicious" if event.malicious else "honest"]
            group[0] += event.accepted
            group[1] += 1
        elif isinstance(event, EvaluationEvent):
            shares = {
                f"{name}_accepted": yes / all_ for name, (yes, all_) in groups.items() if all_
            }
            self.log(self._runs[run], _defined(event.metrics) | shares, event.round)

    def on_end(self, run: Path, result: Mapping[str, Any] | None) -> None:
        """End the record."""
        del self._uploads[run]
        found = _defined(flat_figures(result)) if result else {}
        figures = {f"final/{name}": value for name, value in found.items()}
        self.close(self._runs.pop(run), figures, bool(result))


def _defined(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say how to get the library of a tracker that cannot be imported inside."""
    try:
        yield
    except ImportError as error:
        remedy = f"pip install 'secureafl[{extra}]'"
        raise ConfigError(f"tracking with {extra} needs its library ({error}): {remedy}") from None
