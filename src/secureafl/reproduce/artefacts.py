"""The tables and figures of the paper, and how the axes of their grids make rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from secureafl.paper.tables import (
    COUNTERPARTS,
    Figures,
    Table,
    alpha_table,
    main_table,
    variants_table,
)

ESTIMATION, RUNTIME = "estimation-error", "runtime"

_EIGHT = (
    "Eight methods: the seven of the paper's main table, and AsyncDefender, whose figures the "
    "paper gives in a table of its own. Beside them trust clipping, which is ours: it is held "
    "against the paper's SecureAFL."
)
_BASGD = "A round is one upload for every method; BASGD steps only when all its buffers are full."
_INTERPRETED = "AsyncDefender is built from its abstract; its details are an interpretation."
_PLOTS = (
    "The paper shows this as plots without numbers: the curves here stand alone. Where a column is "
    "the paper's default, its main table's figure stands beside ours."
)
_ATTACKS = "The plots do not say which attacks they show; all ten are run."
_STATED = (
    "The attacks as the paper's text has them: sign flip times 1; noise of standard deviation 200; "
    "DBA and Neurotoxin without amplification, of which the text says nothing; PGD with one "
    "gradient per upload, as clients upload one; 3DFed and Min-Max as their authors released them "
    "(factor 5; standard deviation as the perturbation)."
)
_NOT_STATED = (
    "By how much Scaling amplifies is not said: its factor is the main table's, chosen so that "
    "AsyncSGD suffers as the paper reports. Label flip and the adaptive attack are the main "
    "table's too."
)


def _default_column(column: str) -> Callable[[Table, str, str, str], Figures]:
    """The main table's figures, for the column that is its setting."""
    return lambda table, at, row, c: _plain_table(table, "", row, at) if c == column else {}


def _plain_table(table: Table, _: str, row: str, column: str) -> Figures:
    return table.get(COUNTERPARTS.get(row, row), {}).get(column, {})


@dataclass(frozen=True)
class Artefact:
    """A table or figure of the paper, whose grid is `grids/NAME.toml`."""

    rows: str = "defense"  # the axis down a table
    columns: str = "attack"  # the axis across
    sheets: str = ""  # the axis with a table for each value
    row_name: str = "Defence"
    column_name: str = "Attack"
    row_names: tuple[str, ...] = ()  # of the axis' values, where these are no names
    column_names: tuple[str, ...] = ()  # likewise
    ours: tuple[str, ...] = ("secure_afl", "trust_clipping")  # the rows the summary is about
    any_task: bool = False  # whether the paper has it for all tasks
    table: Callable[[str], Table] = main_table  # the paper's, of a task
    beside: Callable[[Table, str, str, str], Figures] = _plain_table  # of sheet, row, column
    notes: tuple[str, ...] = ()


def _figure(axis: str, name: str, default: str, *notes: str) -> Artefact:
    return Artefact(
        columns=axis,
        column_name=name,
        sheets="attack",
        beside=_default_column(default),
        notes=(_PLOTS, _ATTACKS, _BASGD, *notes),
    )


_TEN = (
    *("none", "label_flip", "sign_flip", "gaussian", "scaling", "dba", "pgd", "neurotoxin"),
    *("three_d_fed", "min_max", "adaptive"),
)

ARTEFACTS = {
    "main": Artefact(any_task=True, notes=(_EIGHT, _BASGD, _INTERPRETED)),
    "stated": Artefact(column_names=_TEN, any_task=True, notes=(_STATED, _NOT_STATED)),
    "asyncdefender": Artefact(any_task=True, notes=(_INTERPRETED,)),
    "alpha": Artefact(
        rows="defense.alpha",
        row_name="alpha",
        ours=("0.4", "0.6", "0.8"),
        table=lambda _: alpha_table(),
    ),
    "variants": Artefact(
        row_name="Variant",
        row_names=("I", "II", "III", "IV", "secure_afl"),
        table=lambda _: variants_table(),
        notes=(
            "I: mean instead of median; II: no estimates; III: no filter; IV: received uploads are "
            "not used.",
        ),
    ),
    "malicious-fraction": _figure(
        "malicious",
        "share of malicious clients",
        "0.2",
        "Kardam and BASGD are told a share of 0.2 throughout; Kardam stands fewer than a third.",
    ),
    "delay": _figure("arrivals.max_staleness", "largest delay", "10"),
    "non-iid": _figure("partition.degree", "non-IID degree", "0.5"),
    "clients": _figure("clients", "number of clients", "50"),
}
