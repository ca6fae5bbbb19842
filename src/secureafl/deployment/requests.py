"""Who was asked what, and when: one answer per request, and not too many of anybody.

The tracker knows no network and no clock; its times are the caller's. What a client says about the
version it answers to is never asked: it is noted here when the model is sent.
"""

from __future__ import annotations

from typing import NamedTuple

_MINUTE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0  # seconds, after a failure; doubled by each one


class Request(NamedTuple):
    """A model under way to a node, or an answer to it on its way back."""

    node: int
    client: int  # the slot it sits in
    version: int  # of the model it was sent
    sent: float


class _Pace:
    """How a node behaves: when it answered, and failures since it last did well."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.failures = 0
        self.not_before = 0.0


class RequestTracker:
    """Open requests by message id, and the pace of every node."""

    def __init__(self, deadline: float, per_minute: int) -> None:
        """`deadline` in seconds; a node is asked at most `per_minute` times a minute."""
        self._deadline, self._per_minute = deadline, per_minute
        self._open: dict[str, Request] = {}
        self._asked: set[int] = set()  # nodes with an open request
        self._pace: dict[int, _Pace] = {}

    @property
    def open(self) -> list[str]:
        """Messages an answer is expected to."""
        return list(self._open)

    def may_ask(self, node: int, now: float) -> bool:
        """Whether a node is free, and not too fast."""
        return node not in self._asked and now >= self._of(node).not_before

    def ask(self, message: str, request: Request) -> None:
        """A request has gone out."""
        self._open[message] = request
        self._asked.add(request.node)

    def take(self, message: object, node: object) -> Request | str:
        """The request that an answer belongs to, once; or the reason why it is not wanted.

        A `node` of None speaks for the network itself, and may close any request.
        """
        request = self._open.get(message) if isinstance(message, str) else None
        if request is None:
            return "unknown_request"  # never made, answered already, or given up
        if node is not None and node != request.node:
            return "wrong_sender"
        self._close(str(message))
        return request

    def done(self, node: int, well: bool, now: float) -> None:
        """A node has answered, well or not; that decides when it is asked again."""
        pace = self._of(node)
        pace.answers = [at for at in pace.answers if now - at < _MINUTE] + [now]
        pace.failures = 0 if well else pace.failures + 1
        pause = 0.0 if well else min(_FIRST_PAUSE * 2 ** (pace.failures - 1), _LONGEST_PAUSE)
        if len(pace.answers) >= self._per_minute:
            pause = max(pause, _MINUTE - (now - pace.answers[-self._per_minute]))
        pace.not_before = now + pause

    def overdue(self, now: float) -> list[Request]:
        """Requests nobody waits for any longer; an answer to them is unknown from now on."""
        late = [m for m, r in self._open.items() if now - r.sent > self._deadline]
        return [self._close(message) for message in late]

    def _close(self, message: str) -> Request:
        request = self._open.pop(message)
        self._asked.discard(request.node)
        return request

    def _of(self, node: int) -> _Pace:
        return self._pace.setdefault(node, _Pace())
