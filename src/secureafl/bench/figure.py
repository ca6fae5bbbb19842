"""The cost of an arrival against each thing it grows with, as PNG.

Colours are Okabe and Ito's, told apart by colour-blind readers; markers say the same once more.
Drawn on a Figure object: pyplot and its global figures are never loaded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from secureafl.bench.cases import Case
from secureafl.bench.results import Row
from secureafl.presentation.plotting import our_style

_LOOKS = {
    "plain": ("#D55E00", "s", "plain torch"),
    "secure_afl": ("#0072B2", "o", "secure_afl"),
    "trust_clipping": ("#56B4E9", "P", "trust_clipping"),
    "async_sgd": ("#009E73", "D", "async_sgd"),
    "zeno_pp": ("#CC79A7", "^", "zeno_pp"),
    "aflguard": ("#E69F00", "v", "aflguard"),
}
_OURS = "secure_afl"
_AXES = {
    "clients": "clients n",
    "parameters": "parameters d",
    "buffer": "stored pairs ε",
}


def draw(rows: Sequence[Row], main: Case, hardware: str) -> bytes:
    """Three panels: clients, parameters, pairs; the other two as in the main case."""
    with our_style():
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        axes = figure.subplots(1, len(_AXES), sharey=True)
        for axis, (field, name) in zip(axes, _AXES.items(), strict=True):
            _panel(axis, [row for row in rows if _belongs(row, main, field)], field)
            axis.set_xlabel(name)
        axes[0].set_ylabel("milliseconds per arrival")
        handles = {}
        for axis in axes:
            found, labels = axis.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=4)
        figure.supxlabel(f"other settings: {main}; {hardware}", fontsize=8)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _belongs(row: Row, main: Case, field: str) -> bool:
    """Whether a case differs from the main one in this field alone."""
    case = Case(row.clients, row.parameters, row.buffer or main.buffer)
    if field == "buffer" and row.buffer is None:
        return False
    same = case._replace(**{field: getattr(main, field)}) == main
    return same and row.replicas == 1 and row.method in _LOOKS


def _panel(axis: Axes, rows: list[Row], field: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    for method, (colour, marker, label) in _LOOKS.items():
        points = sorted((getattr(r, field), r.milliseconds) for r in rows if r.method == method)
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(x, y, color=colour, marker=marker, linewidth=1.6, label=label)
    ours = sorted((r for r in rows if r.method == _OURS), key=lambda r: getattr(r, field))
    if ours:
        _references(axis, [getattr(r, field) for r in ours], ours)
    values = sorted({getattr(row, field) for row in rows})
    axis.set_xticks(values, [f"{value:,}" for value in values])
    axis.xaxis.set_minor_locator(NullLocator())


def _references(axis: Axes, x: list[int], ours: list[Row]) -> None:
    """Draw the floor, and a line in proportion to the memory through our first point."""
    floor = [row.floor_milliseconds or 0 for row in ours]
    in_proportion = [ours[0].milliseconds * value / floor[0] for value in floor]
    # The marker shows where there is a single point, too.
    floor_label = "floor: memory read once"
    axis.plot(x, floor, marker="_", color="#000000", linewidth=1, label=floor_label)
    label = "linear in the memory, from the first point"
    axis.plot(x, in_proportion, "--", color="#777777", linewidth=1, label=label)
