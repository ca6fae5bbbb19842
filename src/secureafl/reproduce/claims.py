"""What the paper's text says of its four figures, and whether runs show the same.

It gives their curves without numbers, so its sentences are what ours can be held against. Its words
are turned into numbers here, which each claim tells: "stable" is a difference of no more than twice
the paper's bound on deviations, "sharply" one of more than a tenth, "most" is more than half. What
it says of the causes no curve shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from secureafl.paper.tables import TOLERANCE
from secureafl.report.artefact import Judged
from secureafl.report.cells import Sheet
from secureafl.report.summary import shown

_STEADY, _SHARP, _LOW, _ALL = 2 * TOLERANCE, 0.1, 0.1, 0.9
_MAIN_TABLE = 0.18  # the highest error of SecureAFL in the paper's main table
_POOR = 0.28  # that and a tenth
_RANDOM = 0.8  # error; naming one of ten labels has 0.9
_BACKDOORS = ("scaling", "dba", "pgd", "neurotoxin", "three_d_fed")
_ATTACKS = ("label_flip", "sign_flip", "gaussian", *_BACKDOORS, "min_max", "adaptive")
_BASELINES = ("async_sgd", "kardam", "basgd", "sageflow", "zeno_pp", "aflguard")
_MOST, _SEVERAL = 4, 3  # of the six
_DIGITS = 3  # that a page shows


class Finding(NamedTuple):
    """Whether a claim holds, and the figures that decide it."""

    holds: bool
    because: str


class Claim(NamedTuple):
    """A sentence of the paper's text in our words, and what decides it."""

    text: str
    decide: Callable[[Sequence[Sheet]], Finding]  # of the sheets of these attacks
    attacks: Sequence[str] = _ATTACKS


class _UndecidedError(Exception):
    """A figure that a claim needs is not there, or says nothing of it."""


def judge(
    claims: Iterable[Claim], sheets: Sequence[Sheet], unlike: Sequence[str] = ()
) -> list[Judged]:
    """Hold each claim against the runs; one that needs runs that are missing is not decided.

    Nor is any if the runs are unlike the paper's, in ways that are told.
    """
    found = []
    for claim in claims:
        try:
            if unlike:
                raise _UndecidedError(" ".join(unlike))
            holds, because = claim.decide(_of(sheets, claim.attacks))
        except _UndecidedError as why:
            found.append(Judged(claim.text, "not decided", str(why)))
        else:
            found.append(Judged(claim.text, "holds" if holds else "does not hold", because))
    return found


def _of(sheets: Sequence[Sheet], attacks: Sequence[str]) -> list[Sheet]:
    by_attack = {sheet.title: sheet for sheet in sheets}
    for attack in attacks:
        if attack not in by_attack:
            raise _UndecidedError(f"{attack} is missing")
    return [by_attack[attack] for attack in attacks]


def _figure(sheet: Sheet, row: str, column: str, metric: str = "ter") -> float:
    cell = sheet.cells.get((row, column))
    if cell is None or metric not in cell.figures:
        raise _UndecidedError(f"{shown(row)} under {sheet.title} at {column} is missing")
    mean = cell.figures[metric].mean
    return round(mean, _DIGITS) if mean == mean else 1.0  # diverged: as bad as can be


def _rise(sheet: Sheet, row: str, start: str, end: str) -> float:
    return round(_figure(sheet, row, end) - _figure(sheet, row, start), _DIGITS)


def _spread(sheet: Sheet, row: str) -> float:
    found = [_figure(sheet, row, column) for column in sheet.columns]
    return round(max(found) - min(found), _DIGITS)


def _ruined(sheet: Sheet, row: str, column: str) -> bool:
    return _figure(sheet, row, column) >= _RANDOM


def _taken_over(sheet: Sheet, row: str, column: str) -> bool:
    return sheet.title in _BACKDOORS and _figure(sheet, row, column, "asr") >= _ALL


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


def _lowest(
    row: str, columns: Sequence[str], text: str, metrics: Sequence[str] = ("ter",)
) -> Claim:
    """Of the methods the paper compares; of the success rates those of backdoors."""

    def decide(sheets: Sequence[Sheet]) -> Finding:
        told, holds = [], True
        for metric in metrics:
            among = [s for s in sheets if metric == "ter" or s.title in _BACKDOORS]
            places = [(sheet, column) for sheet in among for column in columns]
            count = sum(
                _figure(sheet, row, column, metric)
                <= min(_figure(sheet, other, column, metric) for other in _BASELINES)
                for sheet, column in places
            )
            told.append(f"the lowest {metric.upper()} in {count} of {len(places)} columns")
            holds = holds and count == len(places)
        return Finding(holds, f"{shown(row)} has {' and '.join(told)}")

    return Claim(text, decide)


def _compromised(rows: Sequence[str], attacks: Sequence[str], column: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        pairs = [(sheet, row) for sheet in sheets for row in rows]
        spared = [
            f"{shown(row)} under {sheet.title} with an error of {_figure(sheet, row, column):.3f} "
            f"and a success rate of {_figure(sheet, row, column, 'asr'):.3f}"
            for sheet, row in pairs
            if not (_ruined(sheet, row, column) or _taken_over(sheet, row, column))
        ]
        told = f"{len(pairs) - len(spared)} of {len(pairs)} are"
        return Finding(not spared, "; not ".join([told, *spared[:1]]))

    return Claim(
        f"At {column} {_listed(rows)} are all but lost under {', '.join(attacks)} (here: taken "
        f"over, with a success rate of {_ALL} or more, or ruined, with an error of {_RANDOM} or "
        "more).",
        decide,
        attacks,
    )


def _often(
    rows: Sequence[str],
    happens: Callable[[Sheet, str], bool],
    text: str,
    meaning: str,
    least: int = 0,
) -> Claim:
    """A claim on all of these rows, or on at least so many of them."""

    def decide(sheets: Sequence[Sheet]) -> Finding:
        counts = [sum(happens(sheet, row) for sheet in sheets) for row in rows]
        told = [f"{shown(row)} under {n}" for row, n in zip(rows, counts, strict=True)]
        often = sum(2 * count > len(sheets) for count in counts)
        holds = often >= (least or len(rows))
        return Finding(holds, f"of {len(sheets)} attacks, {', '.join(told)}")

    number = f"for {least} of {len(rows)} or more, " if least else ""
    return Claim(f"{text} (here: {number}under most attacks, {meaning}).", decide)


def _grow(rows: Sequence[str], text: str, start: str, *ends: str, least: int = 0) -> Claim:
    def happens(sheet: Sheet, row: str) -> bool:
        return all(_rise(sheet, row, start, end) > _SHARP for end in ends)

    meaning = f"the error at {' and at '.join(ends)} is more than {_SHARP} above that at {start}"
    return _often(rows, happens, text, meaning, least)


def _deteriorate(text: str, start: str, end: str) -> Claim:
    def happens(sheet: Sheet, row: str) -> bool:
        worse = _rise(sheet, row, start, end) > _SHARP or _ruined(sheet, row, start)
        return worse or _taken_over(sheet, row, end)

    return _often(
        _BASELINES,
        happens,
        text,
        f"the error at {end} is more than {_SHARP} above that at {start}, or the success rate at "
        f"{end} is {_ALL} or more, or the model is ruined at {start} already, with an error of "
        f"{_RANDOM} or more",
        _MOST,
    )


def _poor(rows: Sequence[str], columns: Sequence[str], text: str) -> Claim:
    def happens(sheet: Sheet, row: str) -> bool:
        return max(_figure(sheet, row, column) for column in columns) > _POOR

    meaning = (
        f"the error at {' or at '.join(columns)} is above {_POOR}, more than {_SHARP} above the "
        "highest of SecureAFL in the paper's main table"
    )
    return _often(rows, happens, text, meaning)


def _fair(column: str, text: str) -> Claim:
    return _often(
        _BASELINES,
        lambda sheet, row: _figure(sheet, row, column) <= _POOR,
        text,
        f"the error is no more than {_POOR}",
        _MOST,
    )


def _wobble(rows: Sequence[str], text: str, least: int = 0) -> Claim:
    return _often(
        rows,
        lambda sheet, row: _spread(sheet, row) > _SHARP,
        text,
        f"highest and lowest error are apart by more than {_SHARP}",
        least,
    )


def _steadier(row: str, others: Sequence[str]) -> Claim:
    def happens(sheet: Sheet, other: str) -> bool:
        mine, theirs = _spread(sheet, row), _spread(sheet, other)
        return mine < theirs or _ruined(sheet, other, sheet.columns[0])

    return _often(
        others,
        happens,
        f"{shown(row)} is more stable than {_listed(others)}",
        f"its highest and lowest error are less far apart than theirs, or their error is {_RANDOM} "
        "or more from the start on",
    )


def _slower(row: str, start: str, end: str) -> Claim:
    def mean_rise(sheets: Sequence[Sheet], rows: Sequence[str]) -> float:
        places = [(sheet, one) for sheet in sheets for one in rows]
        rises = [_rise(s, one, start, end) for s, one in places if not _ruined(s, one, start)]
        if not rises:
            raise _UndecidedError(f"of {_listed(rows)} everything is ruined at {start} already")
        return statistics.fmean(rises)

    def decide(sheets: Sequence[Sheet]) -> Finding:
        mine, theirs = mean_rise(sheets, [row]), mean_rise(sheets, _BASELINES)
        because = f"in the mean its error rises by {mine:.3f}, theirs by {theirs:.3f}"
        return Finding(2 * mine < theirs, because)

    return Claim(
        f"{shown(row)} degrades markedly more slowly than the baselines (here: from {start} to "
        f"{end} its error rises by less than half of what theirs does in the mean; without those "
        f"that are ruined at {start} already, with an error of {_RANDOM} or more).",
        decide,
    )


def _steady(row: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        most, attack = max((_spread(sheet, row), sheet.title) for sheet in sheets)
        return Finding(most <= _STEADY, f"under {attack} they are {most:.3f} apart")

    return Claim(
        f"{shown(row)} is stable over the whole scale (here: highest and lowest error of an "
        f"attack are no more than {_STEADY:.2f} apart).",
        decide,
    )


def _low(row: str, column: str, text: str, most: float, attacks: Sequence[str] = _ATTACKS) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        backdoors = [sheet for sheet in sheets if sheet.title in _BACKDOORS]
        error, where = max((_figure(s, row, column), s.title) for s in sheets)
        rate, there = max((_figure(s, row, column, "asr"), s.title) for s in backdoors)
        because = f"the highest error is {error:.3f}, under {where}, the highest success rate "
        return Finding(error <= most and rate <= _LOW, f"{because}{rate:.3f}, under {there}")

    meaning = f"errors of no more than {most}, success rates of no more than {_LOW}"
    return Claim(f"{text} (here: {meaning}).", decide, attacks)


def _collapse(row: str, attack: str, before: str, end: str) -> Claim:
    def decide(sheets: Sequence[Sheet]) -> Finding:
        (sheet,) = sheets
        early, late = (_figure(sheet, row, column) for column in (before, end))
        holds = late >= _RANDOM and _rise(sheet, row, before, end) > _SHARP
        return Finding(holds, f"it has {early:.3f} at {before} and {late:.3f} at {end}")

    return Claim(
        f"Under {attack} the error of {shown(row)} rises sharply beyond {before}, and comes near "
        f"that of guessing (here: {_RANDOM} or more at {end}, more than {_SHARP} above {before}).",
        decide,
        [attack],
    )


def _listed(rows: Sequence[str]) -> str:
    *some, last = map(shown, rows)
    return f"{', '.join(some)} and {last}" if some else last


_STRONG = ("scaling", "dba", "pgd")

CLAIMS = {
    "malicious-fraction": (
        _deteriorate("Most baselines become much worse with more malicious clients", "0.1", "0.4"),
        _slower("secure_afl", "0.1", "0.4"),
        _lowest(
            "secure_afl",
            ("0.1", "0.2", "0.3", "0.4"),
            "SecureAFL is consistently superior under all attacks (here: at each share it has the "
            "lowest error of the methods compared).",
        ),
        _no_higher("secure_afl", ("0.2", "0.3"), _MAIN_TABLE),
        _poor(("kardam", "basgd"), ("0.2", "0.3"), "Kardam and BASGD are unstable at 0.2 and 0.3"),
        _lowest(
            "secure_afl",
            ("0.4",),
            "At 0.4 SecureAFL has the lowest error of the methods compared, and the lowest success "
            "rate of each backdoor.",
            ("ter", "asr"),
        ),
        _compromised(("async_sgd", "sageflow"), _STRONG, "0.4"),
        _low(
            "secure_afl",
            "0.4",
            f"At 0.4 SecureAFL is neither ruined nor taken over under {', '.join(_STRONG)}",
            _RANDOM,
            _STRONG,
        ),
    ),
    "delay": (
        _grow(_BASELINES, "Many baselines suffer from delay", "5", "50", least=_SEVERAL),
        _grow(("kardam", "basgd"), "Kardam and BASGD are sensitive to delay", "5", "50"),
        _collapse("kardam", "gaussian", "20", "50"),
        _steady("secure_afl"),
        _low(
            "secure_afl",
            "50",
            "At 50 errors of SecureAFL and success rates of backdoors on it are low",
            _MAIN_TABLE,
        ),
        _grow(
            ("sageflow", "zeno_pp", "aflguard"),
            "Sageflow, Zeno++ and AFLGuard become notably worse with delay",
            "5",
            "50",
        ),
        _steadier("secure_afl", ("sageflow", "zeno_pp", "aflguard")),
    ),
    "non-iid": (
        _fair("0.1", "At 0.1 most methods are reasonable"),
        _grow(
            _BASELINES,
            "At 0.7 and 0.9 several baselines become much worse",
            *("0.1", "0.7", "0.9"),
            least=_SEVERAL,
        ),
        _grow(
            ("zeno_pp", "aflguard"),
            "At 0.7 and 0.9 Zeno++ and AFLGuard become much worse",
            *("0.1", "0.7", "0.9"),
        ),
        _steady("secure_afl"),
        _lowest(
            "secure_afl",
            ("0.1", "0.3", "0.5", "0.7", "0.9"),
            "The error of SecureAFL is consistently lower than those of the others compared (here: "
            "the lowest at each degree, under each attack).",
        ),
    ),
    "clients": (
        _wobble(_BASELINES, "Many baselines vary with the number of clients", _SEVERAL),
        _wobble(("kardam", "basgd"), "Kardam and BASGD rise or vary with the number of clients"),
        _steady("secure_afl"),
    ),
}
