"""What an engine yields; one line of `events.jsonl` each."""

from typing import NamedTuple


class ArrivalEvent(NamedTuple):
    """One upload and what the server did with it.

    >>> event = secureafl.ArrivalEvent(
    ...     round=0, client=3, malicious=True, staleness=0, accepted=False, stepped=False,
    ...     reason="norm", scores={"norm": 12.5},
    ... )
    >>> event.reason
    'norm'
    """

    round: int
    client: int
    malicious: bool
    staleness: int
    accepted: bool
    stepped: bool  # False while a buffering defence waits, or when the upload was refused
    reason: str  # why it was not accepted; empty otherwise
    scores: dict[str, float | None]  # None where a score is undefined (no earlier upload)


class EvaluationEvent(NamedTuple):
    """The global model measured on the test set after `round` arrivals.

    >>> secureafl.EvaluationEvent(round=500, metrics={"ter": 0.25}).metrics["ter"]
    0.25
    """

    round: int
    metrics: dict[str, float | None]  # None where a diverged model gives no finite figure


class ForgottenEvent(NamedTuple):
    """A client was inactive for long; after `round` arrivals the defence forgot it.

    >>> secureafl.ForgottenEvent(round=500, client=3).client
    3
    """

    round: int
    client: int


Event = ArrivalEvent | EvaluationEvent | ForgottenEvent
