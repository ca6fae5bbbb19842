"""`secureafl list`: what there is, read off the tables, the module docstrings and the classes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secureafl.core.protocols import Attack, Backdoor
from secureafl.core.traits import Trait, has_trait
from secureafl.experiment import TABLES
from secureafl.settings import presets_of

_NEEDS: dict[Trait, str] = {
    "needs_root_data": "trusted data",
    "needs_malicious": "the number of malicious clients",
    "buffering": "buffering",
}
_KNOWS = {
    "own": "its own client's data and model",
    "colluders": "that, and what the other malicious clients trained",
    "everybody": "what every client trained",
    "defense": "what every client trained, the defence and all its state",
}
# Authors, "Title", where, year.
_CITATION = re.compile(r'"[^"]+",.*\b(19|20)\d\d\b', re.DOTALL)


class About(NamedTuple):
    """What is known of a plug-in without running it."""

    title: str  # first line of the module docstring
    idea: str  # its other paragraphs
    citation: str  # the last one, if it is a citation
    needs: list[str]
    settings: dict[str, str]  # defaults by name
    presets: dict[str, str]  # settings that differ from these
    knows: str  # of an attack; empty for others
    backdoor: bool


def about(cls: type) -> About:
    """Read a plug-in's own description."""
    docstring = sys.modules[cls.__module__].__doc__ or ""
    first, *rest = inspect.cleandoc(docstring).split("\n\n")
    title, _, more = first.partition("\n")
    cited = bool(rest) and _CITATION.search(rest[-1]) is not None
    paragraphs = [more, *(rest[:-1] if cited else rest)]
    default = cls()
    return About(
        title,
        "\n\n".join(_one_line(text) for text in paragraphs if text),
        _one_line(rest[-1]) if cited else "",
        [words for trait, words in _NEEDS.items() if has_trait(default, trait)],
        {f.name: _shown(getattr(default, f.name)) for f in dataclasses.fields(cls)},
        {name: _changes(settings) for name, settings in presets_of(cls).items()},
        _KNOWS[default.knows] if isinstance(default, Attack) else "",
        isinstance(default, Backdoor),
    )


def list_table(what: str, verbose: bool) -> None:
    """Print the table called `what`: name, title and settings, or all that is known."""
    entries = {name: about(cls) for name, cls in _tables()[what].items()}
    (_print_all if verbose else _print_short)(what, entries)


def _tables() -> Mapping[str, Mapping[str, type]]:
    plurals = {
        "Defense": "defenses",
        "ArrivalModel": "arrivals",
        "ServerOptimizer": "optimizers",
    }
    names = {protocol: protocol.__name__ for protocol in TABLES}
    return {plurals.get(n, f"{n.lower()}s"): TABLES[protocol] for protocol, n in names.items()}


def _print_short(what: str, entries: Mapping[str, About]) -> None:
    table = Table("name", "what it is", "settings", title=what, show_lines=True)
    for name, entry in entries.items():
        table.add_row(name, Text(entry.title), Text(_lines(entry.settings)))
    Console().print(table)


def _print_all(what: str, entries: Mapping[str, About]) -> None:
    console = Console()
    for name, entry in entries.items():
        console.print(Text.assemble((name, "bold"), f"  {entry.title}"))
        table = Table.grid(padding=(0, 2, 0, 2))
        for row in _rows(entry):
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()


def _rows(entry: About) -> list[tuple[str, str]]:
    if entry.knows:
        facts = [("knows", entry.knows), ("backdoor", "yes" if entry.backdoor else "no")]
    else:
        facts = [("needs", ", ".join(entry.needs) or "nothing")]
    presets = "\n".join(f"@{name}: {changes}" for name, changes in entry.presets.items())
    return [
        ("idea", entry.idea or "-"),
        *facts,
        ("settings", _lines(entry.settings) or "none"),
        *([("presets", presets)] if presets else []),
        ("from", entry.citation or "-"),
    ]


def _changes(settings: Mapping[str, object]) -> str:
    told = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
    return told or "the settings above"


def _lines(settings: Mapping[str, str]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in settings.items())


def _shown(value: object) -> str:
    if not dataclasses.is_dataclass(value):
        return repr(value)
    if isinstance(value, tuple(TABLES)):
        return type(value).__name__
    inner = (f"{f.name} = {_shown(getattr(value, f.name))}" for f in dataclasses.fields(value))
    return f"{{ {', '.join(inner)} }}"


def _one_line(paragraph: str) -> str:
    return " ".join(paragraph.split())
