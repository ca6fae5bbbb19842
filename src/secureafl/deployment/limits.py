"""What requests may take of the SuperLink's memory and time, whoever sends them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

LARGEST_REQUEST = 16 * 2**20  # bytes; Flower cuts arrays into pieces of 5 MB
STRANGERS_REQUEST = 4096  # bytes; a client asks to be let in with some hundred
MOST_BYTES = 256 * 2**20  # of all bodies on their way or in work
MOST_BYTES_EACH = 64 * 2**20  # of one sender's, so that it does not keep the others waiting
BODY_SECONDS = 120.0  # until a body must be there: a piece of 5 MB at 350 kbit/s

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ByteBudget:
    """Bytes of bodies that may be under way at once; further ones wait, unread."""

    def __init__(self, total: int = MOST_BYTES, each: int = MOST_BYTES_EACH) -> None:
        """`each` is the share of one sender."""
        self._left, self._each = total, each
        self._held: Counter[object] = Counter()
        self._freed = asyncio.Condition()

    async def take(self, sender: object, size: int) -> None:
        """Return when there is room for a body."""
        async with self._freed:
            await self._freed.wait_for(
                lambda: self._left >= size and self._held[sender] + size <= self._each
            )
            self._left -= size
            self._held[sender] += size

    async def give_back(self, sender: object, size: int) -> None:
        """A body is done with."""
        async with self._freed:
            self._left += size
            self._held[sender] -= size
            if not self._held[sender]:
                del self._held[sender]
            self._freed.notify_all()


def limit_body(receive: Receive, largest: int, seconds: float = BODY_SECONDS) -> Receive:
    """End a body that grows beyond a size, or takes too long, whatever it announced."""
    left, until, whole = largest, time.monotonic() + seconds, False

    async def measured() -> MutableMapping[str, Any]:
        nonlocal left, whole
        if whole:  # waiting for the client to go
            return await receive()
        try:
            async with asyncio.timeout(until - time.monotonic()):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        whole = not message.get("more_body", False)
        return message if left >= 0 else {"type": "http.disconnect"}

    return measured
