"""Clients come and go: which have been inactive for long, and how a client is forgotten."""

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
    """Finds the clients that have not uploaded for so many rounds, for a driver of the server.

    There is nothing to save: marking the last `forget_after` arrivals again gives the same value.
    """

    def __init__(self, forget_after: int) -> None:
        """`forget_after = 0`: no client is ever due."""
        self.forget_after = forget_after
        self._active: dict[int, int] = {}  # last round by client, the oldest first

    def mark_active(self, client: int, now: int) -> None:
        """Note that the arrival of round `now` is of that client."""
        if self.forget_after:
            self._active.pop(client, None)
            self._active[client] = now

    def drop(self, client: int) -> None:
        """Note that a client was forgotten for another reason."""
        self._active.pop(client, None)

    def due(self, now: int) -> list[int]:
        """Clients without an upload among the last `forget_after` of `now` arrivals, each once."""
        old = []
        for client, last in self._active.items():
            if now - last <= self.forget_after:
                break
            old.append(client)
        for client in old:
            del self._active[client]
        return old
