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
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from secureafl.presentation.plotting import FONT, our_style
from secureafl.presentation.style import BLACK, BLUE, COLOURS, ON_DARK

MARKERS, LINES = "osD^vPX*", ("-", "--", "-.", ":")
MAX_NAMED_CLIENTS = 60  # of more, the numbers would not fit beside an axis
WIDE, NARROW = 9.0, 4.4  # inches
FAR = 1e100  # beyond, a diverged run would overflow the axes' arithmetic


class Picture(NamedTuple):
    """One figure of the page."""

    file: str  # the name it is saved under
    title: str
    caption: str
    alt: str
    svg: bytes
    narrow: bytes  # the same for a small screen


class Style(NamedTuple):
    """How one line looks."""

    color: str
    marker: str
    linestyle: str


def panels(figure: Figure, items: Sequence[Any]) -> Iterator[tuple[Axes, Any]]:
    """A panel for each item, two side by side if there is room; all have one vertical scale.

    The figure becomes as high as they need.
    """
    columns = 1 if is_narrow(figure) else min(2, len(items))
    rows = math.ceil(len(items) / columns)
    figure.set_figheight(figure.get_figheight() + rows * (2.4 if is_narrow(figure) else 3.0))
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axis, item in itertools.zip_longest(axes, items):
        if item is None:
            axis.remove()
        else:
            yield axis, item


def render_both(height: float, draw: Callable[[Figure], None]) -> tuple[bytes, bytes]:
    """What `draw` draws, as SVG: for a wide page, and for a small screen."""
    return _render((WIDE, height), draw), _render((NARROW, min(height, NARROW)), draw)


def is_narrow(figure: Figure) -> bool:
    """Whether a figure is for a small screen."""
    return figure.get_figwidth() < WIDE


def most_named(figure: Figure) -> int:
    """How many clients have room for their numbers beside an axis."""
    return MAX_NAMED_CLIENTS // 2 if is_narrow(figure) else MAX_NAMED_CLIENTS


def shades() -> Colormap:
    """From nothing to blue, on any ground."""
    return LinearSegmentedColormap.from_list("shades", [f"{BLUE}00", f"{BLUE}ff"])


def _render(size: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    with our_style(), matplotlib.rc_context({"hatch.linewidth": 0.8, "savefig.dpi": 120}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def with_dark_colours(svg: bytes) -> bytes:
    """The same picture with other colours where a page is dark; elsewhere not a bit changes."""
    rules = [f"svg, use {{ fill: {ON_DARK[BLACK]} }}"]  # what names no colour is black
    for what, (light, dark) in itertools.product(("fill", "stroke"), ON_DARK.items()):
        named = f'[style*="{what}: {light.lower()}"], [{what}="{light.lower()}"]'
        rules.append(f"{named} {{ {what}: {dark} !important }}")
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    return svg.replace(b"<defs>", style.encode() + b"<defs>", 1)


def legend_columns(figure: Figure, labels: Sequence[str]) -> int:
    """As many as fit side by side, counted in characters of an average width."""
    return max(1, min(4, int(10 * figure.get_figwidth()) // (max(map(len, labels)) + 8)))


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
