"""`secureafl table`: runs as a table in Markdown, CSV or LaTeX; and tables of pages made again."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from secureafl.core.errors import ConfigError, RunError

EXAMPLE = (
    "Example: secureafl table runs/attacks --rows attack=none,sign_flip --columns defense --paper; "
    "or: secureafl table runs/attacks --rows defense --columns attack --format latex; "
    "or: secureafl table docs/results/attacks.md; "
    "or: secureafl table runs/redteam-*/redteam.json --show searches"
)
_TABLE = re.compile(r"(<!-- secureafl table\s(.*?)-->\n).*?(<!-- end of table -->)", re.DOTALL)
_PAGE = ".md"
Format = Literal["markdown", "csv", "latex"]  # `report.export.Format`, which is slow to import
Show = Literal[
    "figures",
    "accepted",
    "malicious",
    "steps",
    "distance",
    "origin",
    "worst-error",
    "worst-asr",
    "searches",
]


def table(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Run folders, or folders or .tar.gz archives of them; or pages (.md), whose "
            "tables are all made again by the commands that stand above them.",
        ),
    ],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING[=VALUES]",
            help="What the rows are: a setting and, if not all, its values with commas between; "
            "may be given several times. Default: attack.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING[=VALUES]", help="What the columns are. Default: defense."),
    ] = None,
    show: Annotated[
        Show,
        typer.Option(
            help="What a cell shows: mean ± deviation over seeds of every metric; accepted shares "
            "of honest and malicious uploads, or of malicious ones; model steps; over all attacks, "
            "how many cells are the paper's within 0.03, and their mean distance from it. Or, in "
            "one line for each row: seeds, hardware, versions, days and data. Of outcomes of "
            "'secureafl redteam' in place of runs: the worst found for every defence and share of "
            "malicious clients, or the searches one by one."
        ),
    ] = "figures",
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's figures in brackets, where it has some.")
    ] = False,
    format_: Annotated[
        Format,
        typer.Option("--format", help="What to print; LaTeX with the rules of booktabs."),
    ] = "markdown",
    check: Annotated[
        bool, typer.Option("--check", help="Change no page; fail if a table would change.")
    ] = False,
) -> None:
    """Print runs as a table, over seeds, or make the tables of pages again."""
    pages = [source for source in sources if source.suffix == _PAGE]
    with tempfile.TemporaryDirectory(prefix="secureafl-table-") as place:
        if not pages:
            print(_make(Path(place), sources, rows, columns, show, paper, format_), end="")
            return
        if len(pages) < len(sources):
            raise ConfigError("give either runs or pages, not both")
        if format_ != "markdown":
            raise ConfigError(f"--format {format_}: tables of pages are in Markdown")
        with_tables = {page: text for page in pages if _TABLE.search(text := _read(page))}
        if not with_tables:  # of several pages, some may have none
            remedy = "see docs/results/README.md"
            raise ConfigError(f"{pages[0]}: no table with its command above it, {remedy}")
        changed = [p for p, text in with_tables.items() if _fill(p, text, Path(place), check)]
    for page in changed:
        print(f"{page}: {'its tables differ from their runs' if check else 'changed'}")
    if check and changed:
        raise typer.Exit(1)


def _make(
    place: Path,
    sources: list[Path],
    rows: list[str] | None,
    columns: list[str] | None,
    show: Show,
    paper: bool,
    format_: Format,
) -> str:
    if show in ("worst-error", "worst-asr", "searches"):
        if rows or columns or paper:
            raise ConfigError(f"--show {show}: leave out --rows, --columns and --paper")
        return _make_of_searches(sources, show, format_)
    from secureafl.report.export import write_table
    from secureafl.report.table import make_table, parse_axis, read_sources

    down = list(map(parse_axis, rows or ([] if show == "origin" else ["attack"])))
    across = list(map(parse_axis, columns or ["defense"]))
    made = make_table(read_sources(sources, place), down, across, show, paper)
    return write_table(made, format_)


def _make_of_searches(sources: list[Path], show: Show, format_: Format) -> str:
    from secureafl.defenses import DEFENSES
    from secureafl.redteam.entries import read_entries
    from secureafl.report.export import write_table
    from secureafl.report.leaderboard import list_commands, make_leaderboard, make_searches

    entries = read_entries(sources)
    if show != "searches":
        made = make_leaderboard(entries, DEFENSES, show.removeprefix("worst-"))
        return write_table(made, format_)
    below = f"\n{list_commands(entries, DEFENSES)}" if format_ == "markdown" else ""
    return write_table(make_searches(entries, DEFENSES), format_) + below


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{page}: cannot be read ({error})") from error


def _fill(page: Path, text: str, place: Path, check: bool) -> bool:
    """Make the tables of a page again; whether that changes it."""
    from secureafl.core.files import put_file

    def made(found: re.Match[str]) -> str:
        given = _parse(found[2])
        given["sources"] = [page.parent / source for source in given["sources"]]
        return f"{found[1]}\n{_make(place, **given)}\n{found[3]}"

    new = _TABLE.sub(made, text)
    if new != text and not check:
        put_file(page, new.encode())
    return new != text


def _parse(words: str) -> dict[str, Any]:
    """The arguments of a command that stands in a page."""
    alone = typer.Typer(add_completion=False)
    alone.command()(table)
    context = typer.main.get_command(alone).make_context("secureafl table", shlex.split(words))
    return {name: value for name, value in context.params.items() if name != "check"}
