"""The style of all figures, independent of what a host program has set."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import matplotlib
from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # comes with matplotlib, so figures do not depend on the machine's fonts
_STYLE = {
    "font.family": FONT,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "secureafl",  # the same bytes for the same figure
}


@contextlib.contextmanager
def our_style() -> Iterator[None]:
    """Give figures that are made inside this context the package's style."""
    # The context restores what a host program had set; its settings do not affect the figure.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


class NotebookFigure(Figure):
    """A figure that a notebook draws, also where nobody has imported pyplot."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=96)
        return out.getvalue()
