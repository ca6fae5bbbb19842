"""The figures the SecureAFL paper gives for the server, to stand beside those measured here.

Its two tables of running times are in seconds with two decimals and do not say what is included;
they are read here as the time of one round. Its one figure of memory is SecureAFL's; the setting is
not given with it, and taken to be the usual one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

HARDWARE = "NVIDIA V100"
MEMORY_BYTES = 456_000_000
_CLOSE = 0.01  # 139,960 parameters are the paper's 140,000


class PaperFigure(NamedTuple):
    """One entry of its tables."""

    method: str
    clients: int
    parameters: int
    milliseconds: int


_CLIENTS = {
    "async_sgd": {50: 20, 100: 20, 300: 40},
    "zeno_pp": {50: 20, 100: 30, 300: 50},
    "aflguard": {50: 40, 100: 60, 300: 80},
    "secure_afl": {50: 30, 100: 40, 300: 60},
}
_PARAMETERS = {  # with 50 clients
    "async_sgd": {500_000: 30, 1_000_000: 40},
    "zeno_pp": {500_000: 40, 1_000_000: 60},
    "aflguard": {500_000: 50, 1_000_000: 80},
    "secure_afl": {500_000: 40, 1_000_000: 60},
}
FIGURES = [
    *(PaperFigure(m, n, 140_000, t) for m, times in _CLIENTS.items() for n, t in times.items()),
    *(PaperFigure(m, 50, d, t) for m, times in _PARAMETERS.items() for d, t in times.items()),
]
WITH_MEMORY = PaperFigure("secure_afl", 50, 140_000, _CLIENTS["secure_afl"][50])


class Sized(Protocol):
    """What can be found in the paper's tables."""

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
    """All of it."""
    return {
        "hardware": HARDWARE,
        "memory_bytes": MEMORY_BYTES,
        "rows": [figure._asdict() for figure in FIGURES],
    }
