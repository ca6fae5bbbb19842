"""The whole history of one client, found in the events without parsing those of the others."""

from __future__ import annotations

from collections import deque
from typing import Any

from secureafl.core.events import ArrivalEvent
from secureafl.dashboard.messages import finite, head, upload
from secureafl.runs.events import parse
from secureafl.runs.lanes import lanes
from secureafl.runs.layout import EVENTS
from secureafl.runs.tail import Tail
from secureafl.runs.thinned import Cursor, Thinned
from secureafl.runs.watch import Watch

HISTORY, TABLE = 2000, 50  # uploads drawn, and listed


class History:
    """The uploads of one client, followed."""

    def __init__(self, run: str, watch: Watch, client: int) -> None:
        self._run, self._watch, self._client = run, watch, client
        self._tail = Tail(watch.path / EVENTS)
        self._cursor = Cursor(-1, 0)
        # A quick look; what a line really holds is seen once it is parsed.
        self._needles = b'"client": %d,' % client, b'"client":%d,' % client
        self._start_over()

    def _start_over(self) -> None:
        self._uploads: Thinned[ArrivalEvent] = Thinned(HISTORY)
        self._latest: deque[ArrivalEvent] = deque(maxlen=TABLE)
        self._cursor = Cursor(-1, 0)

    def refresh(self) -> tuple[bool, bool]:
        """Read on: whether anything is new, and whether there is more to read at once."""
        block = self._tail.read()
        if block.again:
            self._start_over()
        mine = [line for line in block.lines if any(n in line for n in self._needles)]
        events = [e for e in parse(mine).events if isinstance(e, ArrivalEvent)]
        for event in events:
            if event.client == self._client:
                self._uploads.add(event)
                self._latest.append(event)
        return bool(events) or block.again, block.more

    def message(self) -> dict[str, Any]:
        """What the page does not have yet."""
        start, points = self._uploads.since(self._cursor)
        self._cursor = self._uploads.cursor
        digest = self._watch.digest
        name, bound = digest.deciding or ("", None)
        scores = {"value": name, "bound": bound or "", "distance": digest.measure or ""}
        return {
            "head": head(self._run, self._watch),
            "start": start,
            "name": name,
            "measure": digest.measure,
            "round": [event.round for event in points],
            "accepted": [event.accepted for event in points],
            "staleness": [event.staleness for event in points],
            **{k: [finite(e.scores.get(s)) for e in points] for k, s in scores.items()},
            "latest": [upload(event) for event in reversed(self._latest)],
            "lane": self._lane(),
        }

    def _lane(self) -> dict[str, Any] | None:
        found = lanes(self._watch.digest)
        for rank, lane in enumerate(found, 1):
            if lane.client == self._client:
                return lane._asdict() | {"rank": rank, "of": len(found)}
        return None
