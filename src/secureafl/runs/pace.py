"""How fast a run goes, from `pace.jsonl`."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable
from typing import NamedTuple

from secureafl.runs.thinned import Thinned

PACE_POINTS = 1000


class Moment(NamedTuple):
    """How many rounds were done at some time."""

    opened: float  # when its session began, in seconds since 1970
    seconds: float  # since then
    rounds: int

    @property
    def time(self) -> float:
        """This moment in seconds since 1970."""
        return self.opened + self.seconds


class Pace:
    """The moments of a run; rounds done again after a kill count once."""

    def __init__(self) -> None:
        self.moments: Thinned[Moment] = Thinned(PACE_POINTS)
        self._before: Moment | None = None
        self._last: Moment | None = None

    def add(self, lines: Iterable[bytes]) -> None:
        """Add more lines; those that are damaged are left out."""
        for line in lines:
            moment = _moment(line)
            if moment is None:
                continue
            last = self._last
            if last and (moment.opened != last.opened or moment.rounds < last.rounds):
                self.moments.cut(lambda point, start=moment.rounds: point.rounds < start)
            self._before, self._last = last, moment
            self.moments.add(moment)

    @property
    def per_second(self) -> float | None:
        """Rounds per second between the last two moments."""
        one, two = self._before, self._last
        if one is None or two is None or one.opened != two.opened or two.seconds <= one.seconds:
            return None
        return max(0, two.rounds - one.rounds) / (two.seconds - one.seconds)

    def times(self, rounds: Iterable[int]) -> list[float | None]:
        """When each of these rounds was over, to the next moment known; None if none is."""
        points = self.moments.points
        done = [point.rounds for point in points]
        found = (bisect.bisect_left(done, number + 1) for number in rounds)
        return [points[min(i, len(points) - 1)].time if points else None for i in found]


def _moment(line: bytes) -> Moment | None:
    try:
        fields = json.loads(line)
        found = Moment(float(fields["opened"]), float(fields["seconds"]), int(fields["rounds"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    sound = math.isfinite(found.opened) and math.isfinite(found.seconds) and found.rounds >= 0
    return found if sound else None
