"""What the SecureAFL paper reports, to stand beside what is measured here.

Gao, Wang, Wan, Quan, Liu, Fang, "SecureAFL: secure asynchronous federated learning", ASIA CCS 2026.
Two decimals, means of five runs, standard deviations "within 0.03". Its figures over the share of
malicious clients, delay, non-IID degree and number of clients are plots only: no numbers of them
are here.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any, NamedTuple

Figures = dict[str, float]  # by metric: ter, asr or rmse
Table = dict[str, dict[str, Figures]]  # row -> attack -> figures

TOLERANCE = 0.03  # the paper's bound on its own standard deviations

# The row of the paper that a defence of our own is compared with.
COUNTERPARTS = {"trust_clipping": "secure_afl"}


class Window(NamedTuple):
    """Mean relative error of the estimates over some rounds."""

    first: int
    end: int | None  # None: until convergence
    error: float


class RoundTime(NamedTuple):
    """Running time of one method."""

    method: str
    clients: int
    parameters: int
    seconds: float


def main_table(task: str) -> Table:
    """All methods under all attacks; AsyncDefender's row comes from a table of its own."""
    return {**_data()["main"][task], "async_defender": _data()["async_defender"][task]}


def reported_figures(task: str, defense: str, attack: str) -> Figures:
    """The main table's figures for a defence under an attack; empty if it has none.

    The table says nothing of strengths other than those the paper states, or those that do the
    damage it reports, which are the defaults.
    """
    if task not in tasks():
        return {}
    row = main_table(task).get(COUNTERPARTS.get(defense, defense), {})
    return row.get(attack.removesuffix("@stated"), {})


def tasks() -> list[str]:
    """Return the tasks of the main tables."""
    return list(_data()["main"])


def alpha_table() -> Table:
    """SecureAFL on Fashion-MNIST; the rows are values of `alpha`, as texts."""
    return _data()["alpha"]


def variants_table() -> Table:
    """SecureAFL and its variants I to IV on Fashion-MNIST."""
    return _data()["variants"]


def estimation_error() -> list[Window]:
    """The relative error of SecureAFL's estimates on Fashion-MNIST, by rounds."""
    return [Window(**window) for window in _data()["estimation_error"]]


def round_times() -> list[RoundTime]:
    """The running times of both of the paper's tables."""
    return [RoundTime(**row) for row in _data()["round_seconds"]]


def memory_bytes() -> int:
    """Memory that the paper reports for SecureAFL's server."""
    return round(_data()["memory_gigabytes"] * 10**9)


def hardware() -> str:
    """The hardware that the paper's times were measured on."""
    return _data()["hardware"]


@functools.cache
def _data() -> dict[str, Any]:
    source = resources.files("secureafl.paper").joinpath("tables.json")
    return json.loads(source.read_text(encoding="utf-8"))
