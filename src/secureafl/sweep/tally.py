"""The progress of a run, counted from its events."""

from __future__ import annotations

from typing import NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event


class RunProgress(NamedTuple):
    """The figures of one run that a progress display shows."""

    round: int = 0
    accepted: int = 0
    rejected: int = 0
    metrics: dict[str, float | None] | None = None  # of the last evaluation

    def after(self, event: Event) -> RunProgress:
        """Return the progress after one more event."""
        if isinstance(event, EvaluationEvent):
            return self._replace(metrics=event.metrics)
        if not isinstance(event, ArrivalEvent):
            return self
        return self._replace(
            round=event.round + 1,
            accepted=self.accepted + event.accepted,
            rejected=self.rejected + (not event.accepted),
        )
