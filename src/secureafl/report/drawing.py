"""How the report's figures are drawn: as SVG with the same bytes for the same runs.

Markers, line styles and hatches say once more what colours say. Drawn on Figure objects: pyplot
and its global figures are never loaded.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secureafl.presentation.plotting import FONT, our_style
from secureafl.presentation.style import COLOURS

MARKERS, LINES = "osD^vPX*", ("-", "--", "-.", ":")
MAX_NAMED_CLIENTS = 60  # of more, the numbers would not fit beside an axis
FAR = 1e100  # beyond, a diverged run would overflow the axes' arithmetic


class Picture(NamedTuple):
    """One figure of the page."""

    file: str  # the name it is saved under
    title: str
    caption: str
    alt: str
    svg: bytes


class Style(NamedTuple):
    """How one line looks."""

    color: str
    marker: str
    linestyle: str


def panels(figure: Figure, items: Sequence[Any]) -> Iterator[tuple[Axes, Any]]:
    """A panel for each item, two side by side; all have the same vertical axis."""
    columns = min(2, len(items))
    rows = math.ceil(len(items) / columns)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axis, item in itertools.zip_longest(axes, items):
        if item is None:
            axis.remove()
        else:
            yield axis, item


def render(size: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    """What `draw` draws, as SVG."""
    with our_style(), matplotlib.rc_context({"hatch.linewidth": 0.8, "savefig.dpi": 120}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def legend_columns(labels: Sequence[str]) -> int:
    """As many as fit side by side, counted in characters of an average width."""
    return max(1, min(4, 90 // (max(map(len, labels)) + 8)))


def styles_in_turn() -> Iterator[Style]:
    """Colour, marker and line style together; 56 differ before they repeat."""
    for i in itertools.count():
        yield Style(COLOURS[i % 7], MARKERS[i % 8], LINES[i % 4])


@functools.cache
def _glyphs() -> frozenset[int]:
    font = font_manager.get_font(font_manager.findfont(FONT))
    return frozenset(font.get_charmap())


def drawable(text: str) -> str:
    """Characters the font lacks would each raise a warning; dollar signs would begin a formula."""
    return "".join(c if ord(c) in _glyphs() else "?" for c in text).replace("$", r"\$")


def slug(text: str) -> str:
    """A text as the name of a file."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)[:60]
