"""The figures of a report on runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from secureafl.presentation.style import BLACK, BLUE, MEANINGS, ORANGE, VERMILLION
from secureafl.report.drawing import (
    FAR,
    MAX_NAMED_CLIENTS,
    Picture,
    Style,
    drawable,
    legend_columns,
    panels,
    render,
    slug,
    styles_in_turn,
)
from secureafl.report.tables import Run

MAX_DOTS, MAX_BARS = 4000, 1000


def over_rounds(runs: Sequence[Run], metric: str) -> Picture | None:
    """A metric over rounds: one line per run, one panel per attack."""
    shown = [run for run in runs if any(metric in event.metrics for event in run.evaluations)]
    if not shown:
        return None
    scenes = list(dict.fromkeys(run.scene for run in shown))
    # By all runs, so that a defence looks the same in every figure.
    all_styles = dict(
        zip(dict.fromkeys(run.variant for run in runs), styles_in_turn(), strict=False)
    )
    styles = {run.variant: all_styles[run.variant] for run in shown}
    columns = min(2, len(scenes))
    legend = math.ceil(len(styles) / legend_columns(list(styles)))
    height = 3.0 * math.ceil(len(scenes) / columns) + 0.2 * legend + 0.2
    svg = render((9, height), lambda f: _panels(f, shown, metric, scenes, styles))
    title = f"{metric.upper()} over rounds"
    meaning = f": {MEANINGS[metric]}" if metric in MEANINGS else ""
    open_ended = " An open circle ends an unfinished run." * any(not r.finished for r in shown)
    return Picture(
        f"{slug(metric)}-over-rounds.svg",
        title,
        f"{metric.upper()}{meaning}. Compare where the lines end.{open_ended}",
        f"Line chart of {title}: {', '.join(styles)}; one panel each for {', '.join(scenes)}.",
        svg,
    )


def lipschitz(run: Run, number: int) -> Picture | None:
    """Lipschitz factors of all uploads, and the threshold they had to stay under."""
    arrivals = run.arrivals
    # A logarithmic axis has no place for zero.
    defined = np.flatnonzero(arrivals.lipschitz > 0)
    if not defined.size:
        return None
    stride = math.ceil(defined.size / MAX_DOTS)
    svg = render((9, 3.6), lambda f: _dots(f.add_subplot(), run, defined[::stride]))
    sparse = f" One dot in {stride} is shown." if stride > 1 else ""
    meaning = (
        "the more crosses lie above it and circles below it, the better attackers are told from "
        "honest clients."
        if arrivals.malicious.any()
        else "crosses were refused."
    )
    return Picture(
        f"lipschitz-{number:02d}-{slug(run.name)}.svg",
        "Lipschitz factors of uploads",
        f"The filter suspects uploads above the line: {meaning}{sparse}",
        f"Dot plot of Lipschitz factors over rounds for {run.name}, an upload each, "
        "with the threshold as a line.",
        svg,
    )


def staleness(run: Run, number: int) -> Picture | None:
    """Draw the staleness of all uploads."""
    width, bars = run.digest.staleness_bars()
    total = sum(bars)
    if not total:
        return None
    mean = sum(s * uploads for s, uploads in run.digest.staleness.items()) / total
    return Picture(
        f"staleness-{number:02d}-{slug(run.name)}.svg",
        "Staleness of uploads",
        f"How many rounds old the model was that an upload answers to; {mean:.1f} on average.",
        f"Bar chart of how many of {total:,} uploads of {run.name} had which staleness.",
        render((9, 2.2), lambda f: _histogram(f.add_subplot(), width, bars)),
    )


def clients(run: Run, number: int) -> Picture | None:
    """Accepted and refused uploads of every client that sent any.

    A client that attacked only for a while is shown twice: its honest uploads, its poisoned ones.
    """
    if not run.arrivals.client.size:
        return None
    counts = _count(run)
    malicious = int(counts.malicious.sum())
    expected = (
        "Bars of malicious clients are hatched and stand on the shaded right: those should be "
        "mostly refused, the others mostly accepted."
    )
    nobody = "All these clients are honest: they should be mostly accepted."
    if run.deployed:
        nobody = "Which of these clients are malicious, if any, the server does not know."
    if np.unique(counts.client).size < counts.client.size:
        expected += " Who attacked only for a while stands on both sides, with the uploads of each."
    return Picture(
        f"clients-{number:02d}-{slug(run.name)}.svg",
        "Accepted and refused uploads per client",
        expected if malicious else nobody,
        f"Bar chart of accepted and refused uploads for {run.name}: "
        f"{counts.client.size - malicious} {counts.others} and {malicious} malicious clients.",
        render((9, 3.4), lambda figure: _bars(figure, counts)),
    )


def holdings(run: Run, number: int) -> Picture | None:
    """Draw how many samples of each class every client holds."""
    if run.holdings is None:
        return None
    malicious = np.unique(run.arrivals.client[run.arrivals.malicious])
    count, classes = run.holdings.shape
    height = 1.6 + min(4.0, 0.2 * classes)
    svg = render((9, height), lambda figure: _cells(figure.add_subplot(), run.holdings, malicious))
    mark = " A triangle marks malicious clients." * bool(malicious.size)
    return Picture(
        f"holdings-{number:02d}-{slug(run.name)}.svg",
        "Who holds what",
        "The darker a cell, the more of a client's samples are of that class. Clients with the "
        f"same main class stand side by side: dark blocks mean that clients differ.{mark}",
        f"Map of the samples that {count:,} clients of {run.name} hold, by {classes} classes.",
        svg,
    )


class _Counts(NamedTuple):
    client: np.ndarray
    malicious: np.ndarray
    accepted: np.ndarray
    refused: np.ndarray
    others: str  # what clients are that are not known to be malicious


def _panels(
    figure: Figure, runs: Sequence[Run], metric: str, scenes: list[str], styles: dict[str, Style]
) -> None:
    for axis, scene in panels(figure, scenes):
        for run in runs:
            if run.scene == scene:
                _line(axis, run, metric, styles[run.variant])
        axis.set_title(drawable(scene), loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if axis.get_subplotspec().is_first_col():  # pyrefly: ignore  (a subplot has one)
            axis.set_ylabel(drawable(metric.upper()))
    figure.axes[0].set_ylim(
        bottom=min(0, figure.axes[0].get_ylim()[0])
    )  # shared; cut axes exaggerate
    handles = [Line2D([], [], **style._asdict()) for style in styles.values()]
    labels = [drawable(variant) for variant in styles]
    figure.legend(handles, labels, loc="outside upper left", ncols=legend_columns(labels))


def _line(axis: Axes, run: Run, metric: str, style: Style) -> None:
    points = [(e.round, e.metrics[metric]) for e in run.evaluations if metric in e.metrics]
    x, y = np.clip(np.array(points, dtype=float).T, -FAR, FAR)
    (line,) = axis.plot(x, y, markersize=4, linewidth=1.6, alpha=0.9)
    line.set(**style._asdict(), markevery=max(1, len(points) // 12))
    if not run.finished:
        axis.plot(x[-1:], y[-1:], "o", color=style.color, fillstyle="none", markersize=11)


def _dots(axis: Axes, run: Run, shown: np.ndarray) -> None:
    arrivals = run.arrivals
    # Where nobody was planted, as in a deployment, marks say what the server did.
    planted = bool(arrivals.malicious.any())
    crossed = (arrivals.malicious if planted else ~arrivals.accepted)[shown]
    good, bad = ("honest", "malicious") if planted else ("accepted", "refused")
    groups = ((good, ~crossed, "o", BLUE), (bad, crossed, "x", VERMILLION))
    for name, group, marker, colour in groups:
        axis.plot(
            arrivals.round[shown[group]],
            np.clip(arrivals.lipschitz[shown[group]], 1 / FAR, FAR),
            linestyle="",
            marker=marker,
            color=colour,
            fillstyle="none",
            markersize=4,
            rasterized=True,  # thousands of vector dots would make the page heavy
            label=f"{name} upload",
        )
    known = np.flatnonzero(arrivals.threshold > 0)
    known = known[:: math.ceil(max(1, known.size) / MAX_DOTS)]
    x, y = arrivals.round[known], np.clip(arrivals.threshold[known], 1 / FAR, FAR)
    axis.plot(x, y, color=BLACK, lw=1.3, label="threshold", rasterized=True)
    axis.set_yscale("log")
    axis.set_xlabel("round")
    axis.set_ylabel("Lipschitz factor")
    axis.figure.legend(loc="outside upper left", ncols=3)


def _histogram(axis: Axes, width: int, bars: list[int]) -> None:
    places = width * np.arange(len(bars))
    axis.bar(places, bars, width=0.8 * width, align="edge", color=BLUE, alpha=0.75)
    axis.set_xlabel("staleness")
    axis.set_ylabel("uploads")
    axis.grid(visible=False, axis="x")


def _count(run: Run) -> _Counts:
    """Uploads by kind and client: honest ones first, each group by number."""
    pairs = np.stack([run.arrivals.malicious, run.arrivals.client])
    (malicious, ids), index = np.unique(pairs, axis=1, return_inverse=True)
    accepted = np.bincount(index, weights=run.arrivals.accepted, minlength=ids.size)
    refused = np.bincount(index, minlength=ids.size) - accepted
    others = "other" if run.deployed else "honest"
    return _Counts(ids, malicious > 0, accepted, refused, others)


def _bars(figure: Figure, counts: _Counts) -> None:
    axis = figure.add_subplot()
    block = math.ceil(counts.client.size / MAX_BARS)
    for malicious in (False, True):
        chosen = counts.malicious == malicious
        start = 0 if not malicious else math.ceil((~counts.malicious).sum() / block)
        yes, no = (_means(column[chosen], block) for column in (counts.accepted, counts.refused))
        if malicious and yes.size:
            axis.axvspan(start - 0.5, start + yes.size - 0.5, color=VERMILLION, alpha=0.1, lw=0)
        hatch = "////" if malicious else ""
        _stack(axis, start, np.zeros_like(yes), yes, BLUE, hatch)
        _stack(axis, start, yes, no, ORANGE, hatch)
        name = "malicious" if malicious else counts.others
        _name_group(axis, name, counts.accepted[chosen], counts.refused[chosen])
    axis.grid(visible=False, axis="x")
    axis.margins(x=0.01)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("uploads" if block == 1 else f"uploads, mean of {block} clients")
    _name_clients(axis, counts)
    handles = [
        Patch(facecolor=BLUE, label="accepted"),
        Patch(facecolor=ORANGE, label="refused"),
        Patch(facecolor="white", edgecolor=BLACK, hatch="////", label="malicious client"),
    ]
    shown = handles if counts.malicious.any() else handles[:2]
    figure.legend(handles=shown, loc="outside lower left", ncols=3)


def _stack(
    axis: Axes, start: int, low: np.ndarray, height: np.ndarray, colour: str, hatch: str
) -> None:
    """One path for all bars, so that a thousand clients cost no more than ten."""
    if not height.size:
        return
    edges = start - 0.5 + np.arange(height.size + 1.0)
    top, floor = low + height, low
    if height.size <= MAX_NAMED_CLIENTS:
        # Every second interval is the gap between two bars.
        edges = np.column_stack([edges[:-1] + 0.1, edges[1:] - 0.1]).ravel()
        top, floor = (np.repeat(values, 2)[:-1] for values in (top, floor))
        top[1::2] = floor[1::2] = 0
    bars = axis.stairs(top, edges, baseline=floor, fill=True, facecolor=colour, lw=0)
    bars.set(edgecolor="white", hatch=hatch)


def _means(values: np.ndarray, block: int) -> np.ndarray:
    starts = np.arange(0, values.size, block)
    if not starts.size:
        return values
    return np.add.reduceat(values, starts) / np.diff([*starts, values.size])


def _name_group(axis: Axes, name: str, accepted: np.ndarray, refused: np.ndarray) -> None:
    total = accepted.sum() + refused.sum()
    if total:
        text = f"{accepted.size:,} {name} clients, {accepted.sum() / total:.0%} accepted"
        side = "right" if name == "malicious" else "left"
        axis.set_title(text, loc=side, fontsize=10, fontweight="bold")


def _name_clients(axis: Axes, counts: _Counts) -> None:
    if counts.client.size > MAX_NAMED_CLIENTS:
        axis.set_xticks([])
        axis.set_xlabel("clients that uploaded, in each group by number")
        return
    turned = 90 if counts.client.size > 25 else 0
    axis.set_xticks(range(counts.client.size), counts.client.astype(str), rotation=turned, size=8)
    axis.set_xlabel("client")


def _cells(axis: Axes, counts: np.ndarray, malicious: np.ndarray) -> None:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.argsort(counts.argmax(axis=1), kind="stable")
    image = axis.imshow(shares[order].T, aspect="auto", cmap="Blues", vmin=0, interpolation="none")
    axis.grid(visible=False)
    axis.set_ylabel("class")
    axis.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    places = np.flatnonzero(np.isin(order, malicious))
    axis.plot(places, np.full(places.size, -0.5), "v", color=VERMILLION, ms=5, clip_on=False)
    if order.size <= MAX_NAMED_CLIENTS:
        turned = 90 if order.size > 25 else 0
        axis.set_xticks(range(order.size), order.astype(str), rotation=turned, size=8)
        axis.set_xlabel("client")
    else:
        axis.set_xticks([])
        axis.set_xlabel("clients, by their main class")
    axis.figure.colorbar(image, ax=axis, label="share of the client's samples")
