"""What an engine yields; one line of `events.jsonl` each."""

from typing import NamedTuple


class ArrivalEvent(NamedTuple):
    """One upload and what the server did with it."""

    round: int
    client: int
    malicious: bool
    staleness: int
    accepted: bool
    stepped: bool  # False while a buffering defence waits, or when the upload was refused
    reason: str  # why it was not accepted; empty otherwise
    scores: dict[str, float | None]  # None where a score is undefined (no earlier upload)


class EvaluationEvent(NamedTuple):
    """The global model measured on the test set after `round` arrivals."""

    round: int
    metrics: dict[str, float | None]  # None where a diverged model gives no finite figure


class ForgottenEvent(NamedTuple):
    """A client was inactive for long; after `round` arrivals the defence forgot it."""

    round: int
    client: int


Event = ArrivalEvent | EvaluationEvent | ForgottenEvent
