"""Clients come and go: who has not been heard of for long, and how a client is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secureafl.core.protocols import Remembers

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


def forget(plug_in: object, state: Any, client: Int[Tensor, ""]) -> Any:
    """What a defence, estimator or aggregator keeps, without that client; `state` is donated."""
    return plug_in.forget(state, client) if isinstance(plug_in, Remembers) else state


class InactivityTracker:
    """Finds the clients that were not heard of for so many rounds; a driver of the server asks.

    There is nothing to save: hearing the last `forget_after` arrivals again gives the same value.
    """

    def __init__(self, forget_after: int) -> None:
        """`forget_after = 0`: nobody grows old."""
        self.forget_after = forget_after
        self._heard: dict[int, int] = {}  # round by client, the one heard longest ago first

    def mark_active(self, client: int, now: int) -> None:
        """The arrival of round `now` is of that client."""
        if self.forget_after:
            self._heard.pop(client, None)
            self._heard[client] = now

    def due(self, now: int) -> list[int]:
        """Clients none of the last `forget_after` of `now` arrivals are of; each is told once."""
        old = []
        for client, heard in self._heard.items():
            if now - heard <= self.forget_after:
                break
            old.append(client)
        for client in old:
            del self._heard[client]
        return old
