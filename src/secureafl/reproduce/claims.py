"""What the paper's text says of its four figures, and whether runs show the same.

It gives their curves without numbers, so its sentences are what ours can be held against. Its words
are turned into numbers here, which each claim tells: "stable" is a difference of no more than twice
the paper's bound on deviations, "sharply" one of more than a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from secureafl.paper.tables import TOLERANCE
from secureafl.report.artefact import Judged
from secureafl.report.cells import Sheet
from secureafl.report.summary import shown

_STEADY, _SHARP, _LOW, _ALL = 2 * TOLERANCE, 0.1, 0.1, 0.9
_MAIN_TABLE = 0.18  # the highest error of SecureAFL in the paper's main table
_RANDOM = 0.8  # error; naming one of ten labels has 0.9
_BACKDOORS = ("scaling", "dba", "pgd", "neurotoxin", "three_d_fed")
_DIGITS = 3  # that a page shows


class Finding(NamedTuple):
    """Whether a claim holds, and the figures that decide it."""

    holds: bool
    because: str


class Claim(NamedTuple):
    """A sentence of the paper's text in our words, and what decides it."""

    text: str
    decide: Callable[[Sequence[Sheet]], Finding]


class _NotRunError(Exception):
    """A figure that a claim needs is not there."""


def judge(claims: Iterable[Claim], sheets: Sequence[Sheet]) -> list[Judged]:
    """Hold each claim against the runs; one that needs runs that are missing is not decided."""
    found = []
    for claim in claims:
        try:
            holds, because = claim.decide(sheets)
        except _NotRunError as missing:
            found.append(Judged(claim.text, "not decided", f"{missing} is missing"))
        else:
            found.append(Judged(claim.text, "holds" if holds else "does not hold", because))
    return found


def _figure(sheet: Sheet, row: str, column: str, metric: str = "ter") -> float:
    cell = sheet.cells.get((row, column))
    if cell is None or metric not in cell.figures:
        raise _NotRunError(f"{shown(row)} under {sheet.title} at {column}")
    mean = cell.figures[metric].mean
    return round(mean, _DIGITS) if mean == mean else 1.0  # diverged: as bad as can be


def _change(sheet: Sheet, row: str) -> float:
    """From the first value of the scale to the last."""
    return _figure(sheet, row, sheet.columns[-1]) - _figure(sheet, row, sheet.columns[0])


def _spread(sheet: Sheet, row: str) -> float:
    found = [_figure(sheet, row, column) for column in sheet.columns]
    return max(found) - min(found)


def _of(sheets: Sequence[Sheet], attacks: Sequence[str]) -> list[Sheet]:
    by_attack = {sheet.title: sheet for sheet in sheets}
    for attack in attacks:
        if attack not in by_attack:
            raise _NotRunError(attack)
    return [by_attack[attack] for attack in attacks]


def _no_higher(row: str, columns: Sequence[str], most: float) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        found = [(_figure(s, row, c), s.title, c) for s in sheets for c in columns]
        worst, attack, column = max(found)
        return Finding(worst <= most, f"its highest is {worst:.3f}, under {attack} at {column}")

    return Claim(
        f"At {' and '.join(columns)} the error of {shown(row)} is close to that of AsyncSGD "
        f"without an attack (here: no higher than {most}, the highest of the paper's main table).",
        decide,
    )


def _lowest(row: str, column: str, others: Sequence[str]) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        told, holds = [], True
        for metric, among in (("ter", sheets), ("asr", _of(sheets, _BACKDOORS))):
            count = sum(
                _figure(sheet, row, column, metric)
                <= min(_figure(sheet, other, column, metric) for other in others)
                for sheet in among
            )
            told.append(f"the lowest {metric.upper()} under {count} of {len(among)} attacks")
            holds = holds and count == len(among)
        return Finding(holds, f"{shown(row)} has {' and '.join(told)}")

    return Claim(
        f"At {column} {shown(row)} has the lowest error of the methods compared, and the lowest "
        "success rate of each backdoor.",
        decide,
    )


def _compromised(rows: Sequence[str], attacks: Sequence[str], column: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        found = [
            (_figure(sheet, row, column, "asr"), shown(row), sheet.title)
            for sheet in _of(sheets, attacks)
            for row in rows
        ]
        least, row, attack = min(found)
        return Finding(
            least >= _ALL, f"the lowest success rate is {least:.3f}, {row} under {attack}"
        )

    return Claim(
        f"At {column} {_listed(rows)} are all but taken over by {', '.join(attacks)} (here: a "
        f"success rate of {_ALL} or more).",
        decide,
    )


def _grow(rows: Sequence[str], text: str, some: bool = False) -> Claim:
    meaning = "the error at the end of the scale is higher by more than"
    return _often(rows, _change, text, meaning, some)


def _wobble(rows: Sequence[str], text: str) -> Claim:
    return _often(rows, _spread, text, "highest and lowest error are apart by more than")


def _often(
    rows: Sequence[str],
    measure: Callable[[Sheet, str], float],
    text: str,
    meaning: str,
    some: bool = False,
) -> Claim:
    """A claim on all of these rows, or with `some` on most of them."""

    def decide(sheets: Sequence[Sheet]) -> Finding:
        counts = [sum(measure(sheet, row) > _SHARP for sheet in sheets) for row in rows]
        told = [f"{shown(row)} under {n}" for row, n in zip(rows, counts, strict=True)]
        often = sum(2 * count > len(sheets) for count in counts)
        holds = 2 * often > len(rows) if some else often == len(rows)
        return Finding(holds, f"of {len(sheets)} attacks, {', '.join(told)}")

    return Claim(f"{text} (here: {meaning} {_SHARP}, under most attacks).", decide)


def _steady(row: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        most, attack = max((_spread(sheet, row), sheet.title) for sheet in sheets)
        return Finding(most <= _STEADY + 1e-9, f"under {attack} they are {most:.3f} apart")

    return Claim(
        f"{shown(row)} is stable over the whole scale (here: highest and lowest error of an "
        f"attack are no more than {_STEADY:.2f} apart).",
        decide,
    )


def _low(row: str, column: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        found = [(_figure(s, row, column, "asr"), s.title) for s in _of(sheets, _BACKDOORS)]
        most, attack = max(found)
        return Finding(most <= _LOW, f"the highest is {most:.3f}, under {attack}")

    return Claim(
        f"At {column} the success rates of backdoors on {shown(row)} are low (here: no more than "
        f"{_LOW}).",
        decide,
    )


def _collapse(row: str, attack: str, before: str, end: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        (sheet,) = _of(sheets, [attack])
        early, late = (_figure(sheet, row, column) for column in (before, end))
        holds = late >= _RANDOM and late - early > _SHARP
        return Finding(holds, f"it has {early:.3f} at {before} and {late:.3f} at {end}")

    return Claim(
        f"Under {attack} the error of {shown(row)} rises sharply beyond {before}, and comes near "
        f"that of guessing (here: {_RANDOM} or more at {end}, more than {_SHARP} above {before}).",
        decide,
    )


def _listed(rows: Sequence[str]) -> str:
    *some, last = map(shown, rows)
    return f"{', '.join(some)} and {last}" if some else last


_BASELINES = ("async_sgd", "kardam", "basgd", "sageflow", "zeno_pp", "aflguard")

CLAIMS = {
    "malicious-fraction": (
        _no_higher("secure_afl", ("0.2", "0.3"), _MAIN_TABLE),
        _lowest("secure_afl", "0.4", _BASELINES),
        _compromised(("async_sgd", "sageflow"), ("scaling", "dba", "pgd"), "0.4"),
        _grow(
            _BASELINES, "Most baselines become much worse with more malicious clients", some=True
        ),
    ),
    "delay": (
        _collapse("kardam", "gaussian", "20", "50"),
        _grow(("kardam", "basgd"), "Kardam and BASGD are sensitive to delay"),
        _grow(
            ("sageflow", "zeno_pp", "aflguard"),
            "Sageflow, Zeno++ and AFLGuard become notably worse with delay",
        ),
        _steady("secure_afl"),
        _low("secure_afl", "50"),
    ),
    "non-iid": (
        _grow(("zeno_pp", "aflguard"), "Zeno++ and AFLGuard become much worse with label skew"),
        _steady("secure_afl"),
        _lowest("secure_afl", "0.9", _BASELINES),
    ),
    "clients": (
        _wobble(("kardam", "basgd"), "Kardam and BASGD rise or vary with the number of clients"),
        _steady("secure_afl"),
    ),
}
