"""Open requests: one reply counts for each, and no node is asked too often.

The tracker knows no network and no clock; its times are the caller's. The version a client answers
to is noted here when the model is sent, never taken from its reply.
"""

from __future__ import annotations

from typing import NamedTuple

RATE, FAILURES = "rate", "failures"
_MINUTE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0  # seconds, after a failure; doubled by each one


class Request(NamedTuple):
    """A model that was sent to a node, whose reply is awaited."""

    node: int
    client: int  # the node's slot
    version: int  # of the model it was sent
    sent: float


class Pause(NamedTuple):
    """Why a node is not sent a model yet."""

    why: str  # RATE or FAILURES
    seconds: float  # that are left


class _Pace:
    """When a node replied in the last minute, and its failures since its last good reply."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.failures = 0
        self.not_before = 0.0
        self.why = ""  # of the pause until then


class RequestTracker:
    """Open requests by message id, and the pace of every node."""

    def __init__(self, deadline: float, per_minute: int) -> None:
        """`deadline` in seconds; a node is asked at most `per_minute` times a minute."""
        self._deadline, self._per_minute = deadline, per_minute
        self._open: dict[str, Request] = {}
        self._busy: set[int] = set()  # nodes with an open request
        self._pace: dict[int, _Pace] = {}

    @property
    def open(self) -> list[str]:
        """Ids of the messages whose reply is awaited."""
        return list(self._open)

    def may_request(self, node: int, now: float) -> bool:
        """Whether a node has no open request and its pause is over."""
        return node not in self._busy and now >= self._pace_of(node).not_before

    def opened(self, message: str, request: Request) -> None:
        """Note that a request was sent."""
        self._open[message] = request
        self._busy.add(request.node)

    def close(self, message: object, node: object) -> Request | str:
        """The request that a reply belongs to, once; or the reason why the reply is dropped.

        A `node` of None is the network itself, which may close any request.
        """
        request = self._open.get(message) if isinstance(message, str) else None
        if request is None:
            return "unknown_request"  # never made, answered already, or given up
        if node is not None and node != request.node:
            return "wrong_sender"
        self._remove(str(message))
        return request

    def replied(self, node: int, good: bool, now: float) -> None:
        """Note a node's reply, good or not; that decides when it gets the next request."""
        pace = self._pace_of(node)
        pace.answers = [at for at in pace.answers if now - at < _MINUTE] + [now]
        pace.failures = 0 if good else pace.failures + 1
        pause = 0.0 if good else min(_FIRST_PAUSE * 2 ** (pace.failures - 1), _LONGEST_PAUSE)
        pace.why = FAILURES
        if len(pace.answers) >= self._per_minute:
            wait = _MINUTE - (now - pace.answers[-self._per_minute])
            pause, pace.why = max((pause, FAILURES), (wait, RATE))
        pace.not_before = now + pause

    def pauses(self, now: float) -> dict[int, Pause]:
        """The nodes that are not sent a model at present though nothing of theirs is awaited."""
        waiting = ((n, pace) for n, pace in self._pace.items() if now < pace.not_before)
        return {n: Pause(pace.why, pace.not_before - now) for n, pace in waiting}

    @property
    def busy(self) -> set[int]:
        """Nodes with an open request."""
        return self._busy

    def overdue(self, now: float) -> list[Request]:
        """Close the requests past their deadline; a reply to them is unknown from now on."""
        late = [m for m, r in self._open.items() if now - r.sent > self._deadline]
        return [self._remove(message) for message in late]

    def give_up(self, node: int) -> list[Request]:
        """Close the requests of a node; a reply to them is unknown from now on."""
        its = [message for message, request in self._open.items() if request.node == node]
        return [self._remove(message) for message in its]

    def _remove(self, message: str) -> Request:
        request = self._open.pop(message)
        self._busy.discard(request.node)
        return request

    def _pace_of(self, node: int) -> _Pace:
        return self._pace.setdefault(node, _Pace())
