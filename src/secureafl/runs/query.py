"""All run folders as tables that can be asked in SQL: one row per run, one per evaluation.

The folders stay the truth: the tables are made anew from them each time, so they cannot disagree.

    runs         run, task, defense, attack, seed, rounds, finished; every other setting under its
                 dotted name with _ for the dots (defense_alpha); per metric ter_late_mean,
                 ter_late_std, ter_last; honest_accepted, malicious_accepted, steps, seconds,
                 rounds_per_second, peak_memory_bytes; device, torch, commit, started
    evaluations  run, round, metric, value
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from secureafl.core.errors import ConfigError, RunError
from secureafl.runs.events import read_evaluations
from secureafl.runs.find import find_runs
from secureafl.runs.layout import EVENTS, EXPERIMENT, PROVENANCE, RESULT, read_json
from secureafl.settings import refuse_old_names
from secureafl.toml import flatten, read_toml

if TYPE_CHECKING:
    import duckdb
    import pandas

_FIRST = ("run", "task", "defense", "attack", "seed", "rounds", "finished")
_OVERVIEW = ("run", "defense", "attack", "seed", "finished")
_MEASURED = ("steps", "seconds", "rounds_per_second", "peak_memory_bytes")
_EVALUATIONS = ("run", "round", "metric", "value")
_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}

ALL = "select * from runs"


class Answer(NamedTuple):
    """What a query gave."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class ResultsTable:
    """The tables `runs` and `evaluations` of some run folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Read the folders; their evaluations only once a query asks for them."""
        self._folders = folders
        self._database = _duckdb().connect()
        rows = [_row(folder) for folder in folders]
        self._names = list(dict.fromkeys([*_FIRST, *(name for row in rows for name in row)]))
        _create(self._database, "runs", _columns(rows, self._names))
        self._evaluations = False

    def query(self, sql: str = ALL) -> Answer:
        """Columns and rows."""
        found = self._ask(sql)
        return Answer(found.columns, found.fetchall())

    def overview(self) -> Answer:
        """What tells the runs apart and their late errors, few enough columns for a terminal."""
        late = [name for name in self._names if name.endswith("_late_mean")]
        columns = ", ".join(map(_quoted, [*_OVERVIEW, *late]))
        return self.query(f"select {columns} from runs order by run")

    def to_pandas(self, sql: str = ALL) -> pandas.DataFrame:
        """The answer as a data frame."""
        try:
            import pandas  # noqa: F401  (duckdb wants it)
        except ImportError:
            raise ConfigError("to_pandas needs pandas: pip install 'secureafl[store]'") from None
        return self._ask(sql).df()

    def write(self, path: Path, sql: str = ALL) -> None:
        """The answer as a .parquet or .csv file."""
        found, kind = self._ask(sql), path.suffix
        if kind not in (".parquet", ".csv"):
            raise ConfigError(f"{path}: name it .parquet or .csv")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found.write_parquet(str(path)) if kind == ".parquet" else found.write_csv(str(path))
        except (OSError, _duckdb().Error) as error:
            raise RunError(f"{path}: cannot be written ({error})") from error

    def _ask(self, sql: str) -> duckdb.DuckDBPyRelation:
        # Events are long: 20,000 lines for a run of the paper's length.
        if "evaluations" in sql.lower() and not self._evaluations:
            rows = _evaluations(self._folders)
            _create(self._database, "evaluations", _columns(rows, _EVALUATIONS))
            self._evaluations = True
        try:
            return self._database.sql(sql)
        except _duckdb().Error as error:
            raise ConfigError(f"the query failed: {' '.join(str(error).split())}") from error


def results_table(paths: Iterable[Path | str]) -> ResultsTable:
    """The runs in these folders and all folders inside them; warns of any that cannot be read.

    >>> secureafl.results_table([]).query("SELECT count(*) FROM runs").rows
    [(0,)]
    """
    found = find_runs([Path(path) for path in paths])
    for line in found.unreadable:
        warnings.warn(line, stacklevel=2)
    return ResultsTable(found.runs)


def _row(folder: Path) -> dict[str, Any]:
    """One run, flat; what is not known yet is absent."""
    experiment = read_toml(folder / EXPERIMENT)
    refuse_old_names(experiment, folder)
    finished = (folder / RESULT).is_file()
    row = {"run": str(folder), **_columns_of(experiment), "finished": finished}
    try:
        row |= _facts(read_json(folder / PROVENANCE))
        if finished:
            row |= _measured(read_json(folder / RESULT))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RunError(f"{folder}: damaged ({type(error).__name__}: {error})") from error
    for name, value in row.items():
        if isinstance(value, int) and value.bit_length() > 63:  # more than a table's numbers hold
            raise RunError(f"{folder}: damaged ({name} is a number of {value.bit_length()} bits)")
    return row


def _columns_of(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by column: a kind is named after its table, and _ stands for the dots."""
    found: dict[str, Any] = {}
    # A plain setting wins over one of a plug-in that comes to the same name.
    for name, value in sorted(flatten(experiment).items(), key=lambda item: item[0].count(".")):
        column = name.removesuffix(".kind").replace(".", "_")
        found.setdefault(column, json.dumps(value) if isinstance(value, list) else value)
    return found


def _facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    sessions = provenance["sessions"] or [{}]  # a server's run is there before its first session
    last = {key: sessions[-1].get(key) for key in ("device", "torch", "commit")}
    return {**last, "data": provenance.get("data"), "started": sessions[0].get("started")}


def _measured(result: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {
        f"{metric}_{key}": value
        for metric, figures in result["metrics"].items()
        for key, value in figures.items()
    }
    shares = {f"{group}_accepted": u["share"] for group, u in result["uploads"].items()}
    return {**metrics, **shares, **{key: result.get(key) for key in _MEASURED}}


def _evaluations(folders: Iterable[Path]) -> list[dict[str, Any]]:
    return [
        {"run": str(folder), "round": event.round, "metric": metric, "value": value}
        for folder in folders
        if (folder / EVENTS).exists()  # results may be kept without their events
        for event in read_evaluations(folder)
        for metric, value in event.metrics.items()
    ]


def _columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in names}


def _create(database: Any, table: str, columns: Mapping[str, list[Any]]) -> None:
    types = {name: _type(values) for name, values in columns.items()}
    schema = ", ".join(f"{_quoted(name)} {kind}" for name, kind in types.items())
    database.execute(f"create table {table}({schema})")
    # Column by column: a thousand times faster than row by row.
    given = [
        [str(v) if kind == "VARCHAR" and v is not None else v for v in values]
        for values, kind in zip(columns.values(), types.values(), strict=True)
    ]
    if given[0]:
        places = ", ".join(["unnest(?)"] * len(given))
        database.execute(f"insert into {table} select {places}", given)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _type(values: Iterable[Any]) -> str:
    """The narrowest that holds all values; text if they have nothing else in common."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return "DOUBLE"
    return _TYPES.get(kinds.pop(), "VARCHAR") if len(kinds) == 1 else "VARCHAR"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigError("results need duckdb: pip install 'secureafl[store]'") from None
    return duckdb
