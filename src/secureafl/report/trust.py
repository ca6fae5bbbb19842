"""The figure of trust: how much each client counted over the rounds, or how often it was taken."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from secureafl.presentation.style import VERMILLION
from secureafl.report.drawing import (
    MAX_NAMED_CLIENTS,
    Picture,
    is_narrow,
    render_both,
    shades,
    slug,
)
from secureafl.report.tables import Run

_COLUMNS = 150


def trust(run: Run, number: int) -> Picture | None:
    """Draw the trust weight of every client over the run; nothing where all counted alike."""
    arrivals = run.arrivals
    by_weight = bool(np.isfinite(arrivals.weight).any())
    if not by_weight and arrivals.accepted.all():
        return None
    clients, malicious = _in_order(run)
    table = _table(run, arrivals.weight if by_weight else arrivals.accepted, clients)
    label = "weight" if by_weight else "accepted share"
    stronger = (
        "a client's upload weighed: from nothing to as much as a typical client's"
        if by_weight
        else "of a client's uploads were accepted: from none to all"
    )
    below = (
        " Malicious clients stand at the bottom, marked with triangles: those rows should be pale."
        if malicious
        else ""
    )
    height = 1.8 + min(4.2, 0.1 * len(clients))
    return Picture(
        f"trust-{number:02d}-{slug(run.name)}.svg",
        "Whom the server trusted when",
        f"The stronger the colour, the more {stronger}.{below}",
        f"Map of the {label}s of {len(clients):,} clients of {run.name} over rounds, "
        f"{malicious} of them malicious.",
        *render_both(
            height, lambda figure: _map(figure, table, clients, malicious, run.rounds, label)
        ),
    )


def _in_order(run: Run) -> tuple[np.ndarray, int]:
    """Clients that uploaded: by number, but those who ever attacked last; how many these are."""
    everybody = np.unique(run.arrivals.client)
    malicious = np.isin(everybody, run.arrivals.client[run.arrivals.malicious])
    return np.concatenate([everybody[~malicious], everybody[malicious]]), int(malicious.sum())


def _stretch(rounds: int) -> int:
    """Rounds in one column."""
    return -(-rounds // _COLUMNS)


def _table(run: Run, weight: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Mean weight by client and stretch of rounds; the last known where nothing came."""
    arrivals, stretch = run.arrivals, _stretch(run.rounds)
    weighed = np.flatnonzero(np.isfinite(weight))
    columns = -(-run.rounds // stretch)
    # Neither clients nor rounds need be small numbers.
    order = np.argsort(clients)
    row = order[np.searchsorted(clients, arrivals.client[weighed], sorter=order)]
    cell = row, arrivals.round[weighed] // stretch
    total, count = np.zeros((2, clients.size, columns))
    np.add.at(total, cell, np.clip(weight[weighed], 0, 1))
    np.add.at(count, cell, 1)
    last = np.maximum.accumulate(np.where(count > 0, np.arange(columns), -1), axis=1)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    known = np.take_along_axis(mean, np.maximum(last, 0), axis=1)
    return np.where(last >= 0, known, np.nan)


def _map(
    figure: Figure,
    table: np.ndarray,
    clients: np.ndarray,
    malicious: int,
    rounds: int,
    label: str,
) -> None:
    axis = figure.add_subplot()
    extent = (0, _stretch(rounds) * table.shape[1], len(clients) - 0.5, -0.5)
    image = axis.imshow(
        table, shades(), aspect="auto", vmin=0, vmax=1, interpolation="none", extent=extent
    )
    axis.grid(visible=False)
    if malicious:
        first = len(clients) - malicious
        axis.axhline(first - 0.5, color=VERMILLION, lw=1.5)
        places = np.arange(first, len(clients))
        axis.plot(
            np.full(malicious, rounds), places, "<", color=VERMILLION, markersize=4, clip_on=False
        )
    axis.set_xlim(0, rounds)
    if len(clients) <= MAX_NAMED_CLIENTS:
        axis.set_yticks(range(len(clients)), clients.astype(str), size=6)
        axis.set_ylabel("client")
    else:
        axis.set_yticks([])
        axis.set_ylabel("clients")
    axis.xaxis.set_major_locator(MaxNLocator(4 if is_narrow(figure) else 8, integer=True))
    axis.set_xlabel("round")
    figure.colorbar(image, ax=axis, label=label, pad=0.03)
