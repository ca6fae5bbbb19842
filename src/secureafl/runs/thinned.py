"""A series of any length in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Point = TypeVar("Point")


class Cursor(NamedTuple):
    """How much of a series a reader has."""

    version: int
    length: int


class Thinned(Generic[Point]):
    """Points at even distances; when the room is used up, every other one is dropped.

    The last point is always there, whether it will stay or not.
    """

    def __init__(self, room: int) -> None:
        self._room, self._stride, self._seen = room, 1, 0
        self._kept: list[Point] = []
        self._last: Point | None = None
        self.version = 0  # changes when points that a reader has are gone

    def add(self, point: Point) -> None:
        """Put a point at the end."""
        self._last = point
        if self._seen % self._stride == 0:
            self._kept.append(point)
            if len(self._kept) >= self._room:
                del self._kept[1::2]
                self._stride *= 2
                self.version += 1
        self._seen += 1

    def cut(self, stays: Callable[[Point], bool]) -> None:
        """Drop the points at the end that do not stay."""
        before = len(self._kept)
        while self._kept and not stays(self._kept[-1]):
            self._kept.pop()
        self._last = self._kept[-1] if self._kept else None
        self._seen = len(self._kept) * self._stride
        self.version += len(self._kept) < before

    @property
    def points(self) -> list[Point]:
        """All points that are kept, and the last."""
        if self._last is None or self._kept[-1] is self._last:
            return list(self._kept)
        return [*self._kept, self._last]

    @property
    def cursor(self) -> Cursor:
        """The cursor of a reader who has all points but a last one that will not stay."""
        return Cursor(self.version, len(self._kept))

    def since(self, cursor: Cursor) -> tuple[int, list[Point]]:
        """Where to put the points a reader lacks, and these; at 0: instead of all it has."""
        start = cursor.length if cursor.version == self.version else 0
        return start, self.points[start:]
