"""The figures the SecureAFL paper gives for the server, to stand beside those measured here.

Its two tables of running times are in seconds with two decimals and do not say what is included;
they are read here as the time of one round. Its one figure of memory is SecureAFL's; the setting is
not given with it, and taken to be the usual one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from secureafl.paper.tables import hardware, memory_bytes, round_times

HARDWARE = hardware()
MEMORY_BYTES = memory_bytes()
_CLOSE = 0.01  # 139,960 parameters are the paper's 140,000


class PaperFigure(NamedTuple):
    """One entry of the paper's tables."""

    method: str
    clients: int
    parameters: int
    milliseconds: int


FIGURES = [PaperFigure(m, n, d, round(1000 * s)) for m, n, d, s in round_times()]
WITH_MEMORY = next(f for f in FIGURES if f[:3] == ("secure_afl", 50, 140_000))


class Sized(Protocol):
    """A measurement that may have an entry in the paper's tables."""

    @property
    def method(self) -> str: ...  # noqa: D102
    @property
    def clients(self) -> int: ...  # noqa: D102
    @property
    def parameters(self) -> int: ...  # noqa: D102


def figure_for(row: Sized) -> PaperFigure | None:
    """The paper's entry for the same method and case."""
    for figure in FIGURES:
        near = abs(row.parameters - figure.parameters) <= _CLOSE * figure.parameters
        if near and (row.method, row.clients) == (figure.method, figure.clients):
            return figure
    return None


def as_json() -> dict[str, Any]:
    """All entries."""
    return {
        "hardware": HARDWARE,
        "memory_bytes": MEMORY_BYTES,
        "rows": [figure._asdict() for figure in FIGURES],
    }
