"""What a reader of a report wants to know first: which defence holds, and at whose expense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from secureafl.report.export import Table, Value, over_runs, plain
from secureafl.report.formatting import number
from secureafl.report.grid import Counted, Grid

LEVELS = 5  # colours, from the lowest figure of a table to its highest
_MANY = 0.1  # of the honest clients
_LEAST_SPAN = 0.1  # figures closer together than this are not made to look far apart


class Coloured(NamedTuple):
    """A table with a colour for each of its cells."""

    table: Table
    colours: Sequence[Sequence[str]]  # of the cells after the first, names of CSS classes


class _Column(NamedTuple):
    scene: str
    metric: str


def answer(grid: Grid) -> Coloured:
    """Every metric, by defence and attack: mean and deviation over seeds."""
    columns = [_Column(scene, metric) for scene in grid.scenes for metric in grid.metrics(scene)]
    metrics = dict.fromkeys(column.metric for column in columns)
    alone = len(metrics) == 1
    means = {(v, c): _mean(grid, v, c) for v in grid.variants for c in columns}
    levels = {m: _scale([x for (_, c), x in means.items() if c.metric == m]) for m in metrics}
    rows, colours = [], []
    for variant in grid.variants:
        rows.append([plain(variant), *(_value(grid, variant, c, means) for c in columns)])
        colours.append([levels[c.metric](means[variant, c]) for c in columns])
    told = f"{' and '.join(map(str.upper, metrics))} by defence and attack"
    heads = [c.scene if alone else f"{c.scene}, {c.metric.upper()}" for c in columns]
    title = f"{told}, mean ± standard deviation over seeds"
    return Coloured(Table("answer", title, ["Defence", *heads], rows), colours)


def expense(grid: Grid) -> Coloured:
    """Attackers who are caught and honest clients who are silenced, by defence and attack."""
    groups = list(grid.groups.items())
    attacked = {scene for (_, scene), group in groups if group.caught.of}
    columns = [
        (scene, what)
        for scene in grid.scenes
        for what in (["caught"] if scene in attacked else []) + ["silenced"]
    ]
    rows, colours = [], []
    for variant in grid.variants:
        found = [_counted(grid, variant, *column) for column in columns]
        rows.append([plain(variant), *map(_count_value, found)])
        pairs = zip(found, columns, strict=True)
        colours.append([_share_colour(one, what) for one, (_, what) in pairs])
    heads = [f"{scene}, {what}" for scene, what in columns]
    others = "other" if grid.deployed else "honest"
    title = f"Malicious clients caught and {others} clients silenced, of all seeds together"
    return Coloured(Table("refused-clients", title, ["Defence", *heads], rows), colours)


def verdict(grid: Grid) -> list[str]:
    """Which of several defences has the best worst case over several attacks."""
    main = {group.runs[0].metric for group in grid.groups.values()}
    ranked = [v for v in grid.variants if math.isfinite(grid.highest(v))]
    if len(grid.scenes) < 2 or len(ranked) < 2 or len(main) != 1 or None in main:
        return []
    best, worst = ((v, number(grid.highest(v))) for v in (ranked[0], ranked[-1]))
    metric = str(*main).upper()
    unranked = len(grid.variants) - len(ranked)
    rest = f"; {unranked} diverged or incomplete" if unranked else ""
    return [
        f"Of {len(grid.variants)} defences {best[0]} has the best worst case ({metric} {best[1]}), "
        f"{worst[0]} the worst ({metric} {worst[1]}){rest}."
    ]


def silencing(grid: Grid) -> str:
    """Which defences refuse honest clients more often than not; empty without any upload."""
    found = {}
    for variant in grid.variants:
        own = [group.silenced for (v, _), group in grid.groups.items() if v == variant]
        found[variant] = Counted(sum(c.clients for c in own), sum(c.of for c in own))
    if not any(count.of for count in found.values()):
        return ""
    who = "Clients" if grid.deployed else "Honest clients"
    named = [f"{v} {c.clients:,} of {c.of:,}" for v, c in found.items() if c.clients]
    others = "" if len(named) == len(found) else "; the others none"
    return f"{who} silenced: {', '.join(named)}{others}." if named else f"{who} silenced: none."


def _mean(grid: Grid, variant: str, column: _Column) -> float | None:
    """The figure of a cell; None if there is none, NaN if it diverged."""
    group = grid.groups.get((variant, column.scene))
    found = group.figure(column.metric) if group else None
    return found.mean if found else None


def _value(
    grid: Grid, variant: str, column: _Column, means: dict[tuple[str, _Column], float | None]
) -> Value:
    group = grid.groups.get((variant, column.scene))
    found = group.figure(column.metric) if group else None
    if group is None or found is None:
        return plain(None)
    others = [x for (_, c), x in means.items() if c == column and x is not None and x == x]
    # To the three decimals the page shows.
    best = len(others) > 1 and round(found.mean, 3) == round(min(others), 3)
    return over_runs(found, len(group.used), group.note, best)


class _Scale(NamedTuple):
    low: float
    span: float

    def __call__(self, mean: float | None) -> str:
        if mean is None:
            return "nothing"
        far = 1.0 if math.isnan(mean) else (mean - self.low) / self.span
        return f"level-{min(LEVELS - 1, int(far * LEVELS))}"


def _scale(means: Sequence[float | None]) -> _Scale:
    """Colours from the lowest figure to the highest, or further where these are close."""
    known = [mean for mean in means if mean is not None and math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    return _Scale(low, max(high - low, abs(low), _LEAST_SPAN))


def _counted(grid: Grid, variant: str, scene: str, what: str) -> Counted | None:
    group = grid.groups.get((variant, scene))
    found = (group.caught if what == "caught" else group.silenced) if group else None
    return found if found and found.of else None


def _count_value(found: Counted | None) -> Value:
    if found is None:
        return plain(None)
    return Value(f"{found.clients:,} of {found.of:,}", {"clients": found.clients, "of": found.of})


def _share_colour(found: Counted | None, what: str) -> str:
    """One silenced client is bad already; of attackers, the more are caught the better."""
    if found is None:
        return "nothing"
    share = found.clients / found.of
    if what == "caught":
        return f"level-{math.ceil((1 - share) * (LEVELS - 1))}"
    return f"level-{LEVELS - 1 if share > _MANY else LEVELS - 2 if share else 0}"
