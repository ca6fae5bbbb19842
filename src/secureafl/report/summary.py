"""A table of the paper summed up in sentences that claim no more than its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from secureafl.paper.tables import TOLERANCE
from secureafl.report.cells import ALONE, MISSING, WORSE, Cell, Sheet

_NAMES = {
    "async_sgd": "AsyncSGD",
    "kardam": "Kardam",
    "basgd": "BASGD",
    "sageflow": "Sageflow",
    "zeno_pp": "Zeno++",
    "aflguard": "AFLGuard",
    "async_defender": "AsyncDefender",
    "secure_afl": "SecureAFL",
    "trust_clipping": "Trust clipping",
}


def shown(name: str) -> str:
    """Return the name of a row or column as the literature writes it."""
    return _NAMES.get(name, name)


def summaries(sheets: Sequence[Sheet], ours: Sequence[str]) -> list[str]:
    """Compare `ours`, some of the rows, with the paper and then with the other rows."""
    if all(row in _NAMES for row in ours):
        return [line for row in ours for line in _about(sheets, [row])]
    return _about(sheets, ours)


def _about(sheets: Sequence[Sheet], ours: Sequence[str]) -> list[str]:
    cells = [sheet.cells[row, c] for sheet in sheets for row in ours for c in sheet.columns]
    name = shown(ours[0]) if len(ours) == 1 else "These runs"
    return [*_beside_paper(cells, name), *_ranks(sheets, ours)]


def _beside_paper(cells: Sequence[Cell], name: str) -> list[str]:
    with_paper = [cell for cell in cells if cell.paper]
    there = [cell for cell in with_paper if cell.comparison != MISSING]
    missing = sum(cell.comparison == MISSING for cell in cells)
    told = f"{missing} of {len(cells)} cells of {name} are missing." if missing else ""
    if not there:
        return [told] if told else []
    below = sum(cell.at_or_below_paper for cell in there)
    close = sum(cell.comparison not in (WORSE, ALONE) for cell in there)
    return [
        f"{name} at or below the paper in {below} of {len(with_paper)} cells, within {TOLERANCE} "
        f"of it or better in {close}. {told}".strip()
    ]


def _ranks(sheets: Sequence[Sheet], ours: Sequence[str]) -> list[str]:
    """Count how often our row has the lowest main metric of all rows."""
    if len(ours) != 1 or not sheets or len(sheets[0].rows) < 2:
        return []
    complete = [
        [sheet.cells[row, column] for row in (*ours, *sheet.rows)]
        for sheet in sheets
        for column in sheet.columns
        if all(sheet.cells[row, column].figures for row in sheet.rows)
    ]
    if not complete:
        return []
    # To the three decimals the page shows.
    lowest = sum(
        math.isfinite(mine.main) and round(mine.main, 3) <= min(round(c.main, 3) for c in others)
        for mine, *others in complete
    )
    metric = sheets[0].metrics[0].upper()
    return [
        f"Of the {len(sheets[0].rows)} compared, {shown(ours[0])} has the lowest {metric} in "
        f"{lowest} of {len(complete)} complete columns."
    ]
