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

from secureafl.presentation.style import BLACK, BLUE, MEANINGS, ORANGE, SHARES, VERMILLION
from secureafl.report.drawing import (
    FAR,
    MAX_NAMED_CLIENTS,
    Picture,
    Style,
    drawable,
    is_narrow,
    legend_columns,
    most_named,
    panels,
    render_both,
    shades,
    slug,
    styles_in_turn,
)
from secureafl.report.grid import Grid, Group, arrange
from secureafl.report.tables import Run
from secureafl.runs.events import number

ROUND_STEPS = [1, 2, 5, 10]  # between the labels of an axis
MAX_DOTS, MAX_POINTS = 4000, 800


def over_rounds(runs: Sequence[Run], metric: str) -> Picture | None:
    """A metric over rounds: a line per defence with a band over seeds, a panel per attack."""
    shown = [run for run in runs if any(metric in event.metrics for event in run.evaluations)]
    if not shown:
        return None
    grid = arrange(shown)
    # By all runs, so that a defence looks the same in every figure.
    all_styles = dict(zip(arrange(runs).variants, styles_in_turn(), strict=False))
    styles = {variant: all_styles[variant] for variant in grid.variants}
    title = f"{metric.upper()} over rounds"
    meaning = f": {MEANINGS[metric]}" if metric in MEANINGS else ""
    bands = any(len(group.used) > 1 for group in grid.groups.values())
    told = " Lines are means over seeds, bands one standard deviation." * bands
    told += " An open circle ends an unfinished run." * any(not r.finished for r in shown)
    return Picture(
        f"{slug(metric)}-over-rounds.svg",
        title,
        f"{metric.upper()}{meaning}. Compare where the lines end.{told}",
        f"Line chart of {title}: {', '.join(styles)}; one panel each for {', '.join(grid.scenes)}.",
        *render_both(0.2, lambda figure: _panels(figure, grid, metric, styles)),
    )


def lipschitz(run: Run, number: int) -> Picture | None:
    """Lipschitz factors of all uploads, and the threshold they had to stay under."""
    arrivals = run.arrivals
    # A logarithmic axis has no place for zero.
    defined = np.flatnonzero(arrivals.lipschitz > 0)
    if not defined.size:
        return None
    stride = math.ceil(defined.size / MAX_DOTS)
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
        *render_both(3.6, lambda figure: _dots(figure, run, defined[::stride])),
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
        *render_both(2.2, lambda figure: _histogram(figure.add_subplot(), width, bars)),
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
        *render_both(3.4, lambda figure: _bars(figure, counts)),
    )


def holdings(run: Run, number: int) -> Picture | None:
    """Draw how many samples of each class every client holds."""
    found = run.holdings
    if found is None:
        return None
    malicious = np.unique(run.arrivals.client[run.arrivals.malicious])
    count, classes = found.shape
    mark = " A triangle marks malicious clients." * bool(malicious.size)
    return Picture(
        f"holdings-{number:02d}-{slug(run.name)}.svg",
        "Who holds what",
        "The stronger the colour, the more of a client's samples are of that class. Clients with "
        f"the same main class stand side by side: strong blocks mean that clients differ.{mark}",
        f"Map of the samples that {count:,} clients of {run.name} hold, by {classes} classes.",
        *render_both(
            1.6 + min(4.0, 0.2 * classes), lambda figure: _cells(figure, found, malicious)
        ),
    )


class _Counts(NamedTuple):
    client: np.ndarray
    malicious: np.ndarray
    accepted: np.ndarray
    refused: np.ndarray
    others: str  # what clients are that are not known to be malicious


def _panels(figure: Figure, grid: Grid, metric: str, styles: dict[str, Style]) -> None:
    labels = [drawable(variant) for variant in styles]
    ncols = legend_columns(figure, labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(labels) / ncols))
    for axis, scene in panels(figure, grid.scenes):
        for variant, style in styles.items():
            if (variant, scene) in grid.groups:
                _band(axis, grid.groups[variant, scene], metric, style)
        axis.set_title(drawable(scene), loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if axis.get_subplotspec().is_first_col():  # pyrefly: ignore  (a subplot has one)
            axis.set_ylabel(drawable(metric.upper()))
    figure.axes[0].set_ylim(
        bottom=min(0, figure.axes[0].get_ylim()[0])
    )  # shared; cut axes exaggerate
    handles = [Line2D([], [], **style._asdict()) for style in styles.values()]
    figure.legend(handles, labels, loc="outside upper left", ncols=ncols)


def _band(axis: Axes, group: Group, metric: str, style: Style) -> None:
    """The mean over seeds at the rounds all of them have, and one deviation to either side."""
    found = [
        {e.round: number(e.metrics[metric]) for e in run.evaluations if metric in e.metrics}
        for run in group.used
    ]
    rounds = sorted(set.intersection(*(set(one) for one in found)))
    if not rounds:
        return
    values = np.clip([[one[t] for t in rounds] for one in found], -FAR, FAR)
    mean = values.mean(axis=0)
    (line,) = axis.plot(rounds, mean, markersize=4, linewidth=1.6, alpha=0.9)
    line.set(**style._asdict(), markevery=max(1, len(rounds) // 12))
    if len(found) > 1:
        std = values.std(axis=0, ddof=1)
        edges = np.array([mean - std, mean + std])
        low, high = np.clip(edges, 0, 1) if metric in SHARES else edges
        axis.fill_between(rounds, low, high, color=style.color, alpha=0.15, lw=0)
    if not all(run.finished for run in group.used):
        axis.plot(rounds[-1:], mean[-1:], "o", color=style.color, fillstyle="none", markersize=11)


def _dots(figure: Figure, run: Run, shown: np.ndarray) -> None:
    axis, arrivals = figure.add_subplot(), run.arrivals
    # Where nobody is known to be malicious, as in a deployment, marks say what the server did.
    known = bool(arrivals.malicious.any())
    crossed = (arrivals.malicious if known else ~arrivals.accepted)[shown]
    good, bad = ("honest", "malicious") if known else ("accepted", "refused")
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
    bound = np.flatnonzero(arrivals.threshold > 0)
    bound = bound[:: math.ceil(max(1, bound.size) / MAX_POINTS)]
    x, y = arrivals.round[bound], np.clip(arrivals.threshold[bound], 1 / FAR, FAR)
    axis.plot(x, y, color=BLACK, lw=1.3, label="threshold")
    axis.set_yscale("log")
    axis.set_xlabel("round")
    axis.set_ylabel("Lipschitz factor")
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    names = [f"{good} upload", f"{bad} upload", "threshold"]
    figure.legend(loc="outside upper left", ncols=min(3, legend_columns(figure, names)))


def _histogram(axis: Axes, width: int, bars: list[int]) -> None:
    # In the middle of the values it counts: 0 to 4 stand over 2.
    places = width * np.arange(len(bars)) + (width - 1) / 2
    axis.bar(places, bars, width=0.8 * width, color=BLUE, alpha=0.75)
    axis.set_xlabel("staleness")
    axis.set_ylabel("uploads")
    axis.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=ROUND_STEPS))
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=ROUND_STEPS))
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
    block = math.ceil(counts.client.size / (200 if is_narrow(figure) else 600))
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
        _name_group(figure, name, counts.accepted[chosen], counts.refused[chosen])
    axis.grid(visible=False, axis="x")
    axis.margins(x=0.01)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("uploads" if block == 1 else f"uploads, mean of {block} clients")
    if counts.client.size <= most_named(figure):
        _name_clients(figure, counts.client)
    else:
        axis.set_xticks([])
        axis.set_xlabel("clients that uploaded, in each group by number")
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


def _name_group(figure: Figure, name: str, accepted: np.ndarray, refused: np.ndarray) -> None:
    (axis,) = figure.axes
    total = accepted.sum() + refused.sum()
    if total:
        lines = [f"{accepted.size:,} {name} clients", f"{accepted.sum() / total:.0%} accepted"]
        text = ("\n" if is_narrow(figure) else ", ").join(lines)
        side = "right" if name == "malicious" else "left"
        axis.set_title(text, loc=side, fontsize=10, fontweight="bold")


def _name_clients(figure: Figure, numbers: np.ndarray) -> None:
    axis, room = figure.axes[0], 12 if is_narrow(figure) else 25
    turned = 90 if numbers.size > room else 0
    axis.set_xticks(range(numbers.size), numbers.astype(str), rotation=turned, size=8)
    axis.set_xlabel("client")


def _cells(figure: Figure, counts: np.ndarray, malicious: np.ndarray) -> None:
    axis = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.argsort(counts.argmax(axis=1), kind="stable")
    image = axis.imshow(shares[order].T, aspect="auto", cmap=shades(), vmin=0, interpolation="none")
    axis.grid(visible=False)
    axis.set_ylabel("class")
    axis.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    places = np.flatnonzero(np.isin(order, malicious))
    axis.plot(places, np.full(places.size, -0.5), "v", color=VERMILLION, ms=5, clip_on=False)
    if order.size <= most_named(figure):
        _name_clients(figure, order)
    else:
        axis.set_xticks([])
        axis.set_xlabel("clients, by their main class")
    figure.colorbar(image, ax=axis, label="share of the client's samples")
