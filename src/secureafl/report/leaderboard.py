"""The leaderboard: the worst that searches found against every defence.

A cell without a search says so. Of several searches in one cell the worst result counts: it is what
an attacker is known to be able to do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from secureafl.core.errors import RunError
from secureafl.report.export import Table, Value, plain, texts
from secureafl.report.formatting import NOTHING, mean_and_deviation, number

SHARES = (0.1, 0.2, 0.3, 0.4)  # of malicious clients
YARDSTICK = "norm_clipping"  # clipping and nothing else: what a rule should be better than
EMPTY = "not searched yet"
_SEARCHES = (
    "defence", "malicious", "against", "result", "held-out seeds", "error without attack", "by",
    "budget", "hardware", "software", "days",
)  # fmt: skip

Outcome = Mapping[str, Any]


def make_leaderboard(outcomes: Sequence[Outcome], defenses: Iterable[str], against: str) -> Table:
    """The worst found, by defence and share of malicious clients; in brackets the budget."""
    for outcome in outcomes:
        _require_column(*_cell(outcome))
    lines = [
        [plain(defense), plain(_without_attack(outcomes, defense))]
        + [_worst(outcomes, (defense, share, against)) for share in SHARES]
        for defense in _ordered(defenses, outcomes)
    ]
    title = (
        f"The worst {'error' if against == 'error' else 'ASR'} found, by share of malicious clients"
    )
    head = ["defence", "error without attack", *map(_percent, SHARES)]
    return Table(f"worst-{against}", title, head, lines)


def _require_column(defense: str, share: float, against: str) -> None:
    """Raise for a search that no column is for: it would be left out without a word."""
    if share not in SHARES:
        what = f"the search of {defense} against {against} has {_percent(share)} malicious clients"
        columns = ", ".join(map(_percent, SHARES))
        raise RunError(f"{what}, and the leaderboard {columns}; leave its file out")


def make_searches(outcomes: Sequence[Outcome], defenses: Iterable[str]) -> Table:
    """A line for every search."""
    lines = map(_line, _sorted(outcomes, defenses))
    return texts("searches", "The searches one by one", _SEARCHES, lines)


def list_commands(outcomes: Sequence[Outcome], defenses: Iterable[str]) -> str:
    """The commands that make each search again and run its worst attack, as a Markdown block."""
    found = _sorted(outcomes, defenses)
    commands = [line for o in found for line in (o["command"], o["worst"]["command"], "")]
    return "\n".join(["```", *commands[:-1], "```", ""])


def _sorted(outcomes: Sequence[Outcome], defenses: Iterable[str]) -> list[Outcome]:
    order = _ordered(defenses, outcomes)
    return sorted(outcomes, key=lambda o: (order.index(_cell(o)[0]), *_cell(o)[1:]))


def _ordered(defenses: Iterable[str], outcomes: Sequence[Outcome]) -> list[str]:
    """All defences: the yardstick first, those that only searches name last."""
    names = dict.fromkeys([*defenses, *(_cell(outcome)[0] for outcome in outcomes)])
    return sorted(names, key=lambda name: name != YARDSTICK)


def _cell(outcome: Outcome) -> tuple[str, float, str]:
    """Where a search belongs: its defence, its share of malicious clients, and its goal."""
    plan = outcome["plan"]
    return plan["base"]["defense"]["kind"], plan["base"]["malicious"], plan["against"]


def _worst(outcomes: Sequence[Outcome], cell: tuple[str, float, str]) -> Value:
    own = [o for o in outcomes if _cell(o) == cell]
    if not own:
        return Value(EMPTY, {"mean": None, "std": None, "budget": None})
    worst = max(own, key=lambda o: _height(o["worst"]["held_out"]["mean"]))
    held_out, budget = worst["worst"]["held_out"], worst["plan"]["budget"]
    parts = {"mean": held_out["mean"], "std": _deviation(held_out), "budget": budget}
    return Value(f"{_figure(held_out)} ({budget})", parts)


def _without_attack(outcomes: Sequence[Outcome], defense: str) -> str:
    """The error without attack; several where searches had other held-out seeds."""
    own = [_figure(o["without_attack"]) for o in outcomes if _cell(o)[0] == defense]
    return " or ".join(dict.fromkeys(own)) or EMPTY


def _line(outcome: Outcome) -> list[str]:
    defense, share, against = _cell(outcome)
    plan, worst, origin = outcome["plan"], outcome["worst"], outcome["origin"]
    by_seed = worst["held_out"]["seeds"]
    return [
        defense,
        _percent(share),
        "error" if against == "error" else "ASR",
        _figure(worst["held_out"]),
        ", ".join(f"{seed}: {_score(score)}" for seed, score in by_seed.items()),
        _figure(outcome["without_attack"]),
        describe(worst["attack"]),
        f"{plan['budget']}{', blind' if plan['blind'] else ''}",
        *(", ".join(origin[key]) or NOTHING for key in ("devices", "versions", "days")),
    ]


def describe(attack: Mapping[str, Any]) -> str:
    """An attack in a few words: its name, and its settings with two digits."""
    settings = [f"{name} {_short(value)}" for name, value in attack.items() if name != "kind"]
    return f"{attack['kind']}: {', '.join(settings)}" if settings else str(attack["kind"])


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value).lower()


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _figure(figures: Mapping[str, Any]) -> str:
    """The mean and deviation over held-out seeds."""
    mean, deviation = figures["mean"], _deviation(figures)
    return _score(mean) if deviation is None else mean_and_deviation(mean, deviation)


def _deviation(figures: Mapping[str, Any]) -> float | None:
    """The standard deviation over held-out seeds; None where the mean is no number."""
    mean = figures["mean"]
    if mean is None or isinstance(mean, str):
        return None
    return statistics.stdev(figures["seeds"].values())


def _score(value: float | str | None) -> str:
    return value if isinstance(value, str) else number(value)


def _height(mean: float | str) -> float:
    return math.inf if isinstance(mean, str) else mean
