"""Which attacks, and which parts of one, did harm: means over the short runs that had them.

The search tries what does well more often, so these are indications. A part matters as much as
the means of its values differ.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from secureafl.redteam.space import Dimension, Range, Space

_GROUPS = 3  # small, middle and large values of a number

Scored = Sequence[tuple[Mapping[str, Any], float]]  # attacks and their scores


def effects_of_attacks(scored: Scored) -> list[dict[str, Any]]:
    """A line for every attack, the most harmful first."""
    lines = _by_value([(attack["kind"], score) for attack, score in scored])
    return sorted(lines, key=lambda line: -line["highest"])


def effects_of_parts(scored: Scored, kind: str, space: Space) -> list[dict[str, Any]]:
    """For every setting of an attack a line for each value; what matters most comes first."""
    found = []
    own = [(attack, score) for attack, score in scored if attack["kind"] == kind]
    for name, dimension in space[kind].items():
        pairs = [(attack[name], score) for attack, score in own if name in attack]
        if not pairs:
            continue
        lines = _by_value(_grouped(pairs, dimension))
        low, *_, high = sorted([line["mean"] for line in lines] * 2)
        effect = high - low if high > low else 0.0  # both may be infinite
        found.append({"part": name, "effect": effect, "values": lines})
    return sorted(found, key=lambda part: -part["effect"])


def _grouped(pairs: Sequence[tuple[Any, float]], dimension: Dimension) -> list[tuple[str, float]]:
    """Values as text; numbers are put into groups of equal size."""
    if not isinstance(dimension, Range):
        return [(str(value).lower(), score) for value, score in pairs]
    ordered = sorted(pairs, key=lambda pair: pair[0])
    bounds = [round(k * len(ordered) / _GROUPS) for k in range(_GROUPS + 1)]
    groups = [ordered[a:b] for a, b in itertools.pairwise(bounds) if a < b]
    return [(_span(group), score) for group in groups for _, score in group]


def _span(group: Sequence[tuple[Any, float]]) -> str:
    low, high = group[0][0], group[-1][0]
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _by_value(pairs: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    scores: dict[str, list[float]] = {}
    for value, score in pairs:
        scores.setdefault(value, []).append(score)
    return [
        {"value": value, "tried": len(s), "mean": statistics.fmean(s), "highest": max(s)}
        for value, s in scores.items()
    ]
