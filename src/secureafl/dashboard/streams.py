"""Server-sent events: what is sent to a page for as long as it is open."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from secureafl.core.errors import RunError
from secureafl.dashboard.client import History
from secureafl.dashboard.messages import Place, message_for
from secureafl.dashboard.runs import Runs
from secureafl.runs.watch import Watch

_SECONDS = 1.0  # between two messages
_FIRST_SECONDS = 0.1  # a page of a long run shows its beginning after this,
_FURTHER_SECONDS = 1.5  # and then how far the reading has got as often as this
_LIST_SECONDS = 3.0
_BEAT = b":\n\n"  # says nothing: only by writing is it noticed that a page was closed
_BOOT = secrets.token_hex(4)  # ids of an earlier server mean nothing to this one


def overview(
    runs: Runs, front: str, others: Sequence[str], first_lane: int, last_id: str
) -> Iterator[bytes]:
    """The run in front with everything, others with their curves, and the list of runs."""
    watches = {name: found for name in (front, *others) if (found := runs.watch(name))}
    places = _places(last_id, list(watches))
    versions = dict.fromkeys(watches, -1)
    listing = _Listing(runs)
    while True:
        yield from listing.news()
        more = False
        for name, watch in watches.items():
            more |= _read_on(watch, _FIRST_SECONDS if versions[name] < 0 else _FURTHER_SECONDS)
            with watch.lock:
                if watch.version == versions[name]:
                    continue
                versions[name] = watch.version
                message, places[name] = message_for(
                    name, watch, places[name], name == front, first_lane
                )
            yield _event("run", _json(message), _id(places))
        yield _BEAT
        if not more:
            time.sleep(_SECONDS)


class _Listing:
    """The list of runs, sent when it changes."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._sent, self._looked = runs, "", float("-inf")

    def news(self) -> Iterator[bytes]:
        if time.monotonic() - self._looked < _LIST_SECONDS:
            return
        self._looked = time.monotonic()
        fresh = _json(self._runs.listing())
        if fresh != self._sent:
            self._sent = fresh
            yield _event("runs", fresh)


def one_client(run: str, watch: Watch, client: int) -> Iterator[bytes]:
    """The history of one client; a reader who comes back is sent all of it again."""
    history = History(run, watch, client)
    fresh, version = True, -1  # whether there is something to send, and what was sent last
    while True:
        try:
            more = _read_on(watch, _FURTHER_SECONDS)
            new, further = history.refresh()
        except RunError as error:
            yield _event("problem", _json(str(error)))
            new = more = further = False
        fresh |= new or watch.version != version
        if fresh and not (more or further):
            with watch.lock:
                fresh, version = False, watch.version
                message = history.message()
            yield _event("client", _json(message))
        yield _BEAT
        if not (more or further):
            time.sleep(_SECONDS)


def _read_on(watch: Watch, seconds: float) -> bool:
    """Read for a while; True if that was not enough."""
    began, more = time.monotonic(), True
    while more and time.monotonic() - began < seconds:
        more = watch.refresh()
    return more


def _event(kind: str, data: str, id_: str = "") -> bytes:
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()


def _json(value: Any) -> str:
    # Lone surrogates of damaged names become escapes, which every browser reads.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _id(places: Mapping[str, Place]) -> str:
    return "|".join([_BOOT, *(place.as_text() for place in places.values())])


def _places(last_id: str, names: Sequence[str]) -> dict[str, Place]:
    """Where a reader who comes back had got to; the same address means the same runs."""
    boot, *texts = last_id.split("|")
    if boot != _BOOT or len(texts) != len(names):
        return {name: Place() for name in names}
    return {name: Place.from_text(text) for name, text in zip(names, texts, strict=True)}
