"""Malicious clients that upload more often than others, or before them.

How fast a client is costs an attacker little, and no server can forbid it. Without an attack nobody
is malicious, and the schedule is the usual one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def check_malicious(pace: float, first: int) -> None:
    """Raise unless these can be settings of an arrival model."""
    remedy = "give how many times as often they upload, above 0 and at most 1000"
    require(0 < pace <= 1000, "malicious_pace", pace, remedy)
    require(first >= 0, "malicious_first", first, "give 0 or a number of uploads")


def paces(malicious: Bool[np.ndarray, " n"], pace: float) -> Float[np.ndarray, " n"]:
    """How many times as often as an honest client each client uploads."""
    return np.where(malicious, pace, 1.0)


def uploads_ahead(
    malicious: Bool[np.ndarray, " n"], first: int, rounds: int
) -> Int[np.ndarray, " ahead"]:
    """The clients of the first arrivals: every malicious one `first` times, in turns."""
    return np.tile(np.flatnonzero(malicious), first)[:rounds]


def precede(ahead: Int[np.ndarray, " ahead"], later: Trace) -> Trace:
    """A schedule with these arrivals before its own, each computed on the newest model."""
    count = len(ahead)
    return Trace(
        np.concatenate([ahead, later.client]),
        np.concatenate([np.arange(count), later.version + count]),
        np.concatenate([np.zeros(count), later.time]),
    )
