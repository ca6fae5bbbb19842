"""Sphinx: what the comments beside fields say is in the reference too.

A plug-in or a value is a class of fields, each with a comment; docstrings do not repeat them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.rst import escape

# The folders of plug-ins, and what each calls its dictionary of kinds.
TABLES = {
    "aggregators": "AGGREGATORS",
    "arrivals": "ARRIVALS",
    "attacks": "ATTACKS",
    "defenses": "DEFENSES",
    "estimators": "ESTIMATORS",
    "partitions": "PARTITIONS",
    "tasks": "TASKS",
    "tracking": "TRACKERS",
}


@functools.cache
def kinds() -> dict[type, str]:
    """The name of every built-in plug-in in experiments and commands."""
    tables = (getattr(importlib.import_module(f"secureafl.{f}"), t) for f, t in TABLES.items())
    return {cls: name for table in tables for name, cls in table.items()}


def has_fields(thing: Any) -> bool:
    """Whether a class is made of fields: a dataclass or a named tuple."""
    named = ("__dataclass_fields__", "_field_defaults")
    return isinstance(thing, type) and any(hasattr(thing, name) for name in named)


def fields(cls: type) -> Iterator[tuple[str, str]]:
    """Each field as it is written, and the comment beside or above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            yield _written(node), comments.get(node.end_lineno) or _above(node, lines, comments)


def _written(node: ast.AnnAssign) -> str:
    """`name: type = default`; what a factory makes is its default."""
    text = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    if node.value is None:
        return text
    made = re.fullmatch(r"field\(default_factory=(\w+)\)", ast.unparse(node.value))
    return f"{text} = " + (f"{made[1]}()" if made else ast.unparse(node.value))


def _above(node: ast.AnnAssign, lines: list[str], comments: dict[int, str]) -> str:
    """The lines of comment right above a field."""
    found: list[str] = []
    number = node.lineno - 1
    while number in comments and lines[number - 1].lstrip().startswith("#"):
        found.insert(0, comments[number])
        number -= 1
    return " ".join(found)


def plain(comment: str) -> str:
    """A comment as reStructuredText: only its backticks mean something."""
    parts = re.split(r"(`[^`]+`)", comment)
    return "".join(part if part.startswith("`") else escape(part) for part in parts)


def add_fields(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Put a plug-in's name before the docstring of its class, and its fields behind it."""
    if not isinstance(thing, type):
        return
    if thing in kinds():
        page = inspect.getdoc(inspect.getmodule(thing)) or ""  # its idea and where it is from
        kind = kinds()[thing]
        lines[:0] = [f'*In experiments:* ``"{kind}"``', "", *page.splitlines(), ""]
        lines[:0] = [f".. index:: ! {kind}", ""]  # what a search for it finds first
    if has_fields(thing):
        own = [f"- ``{text}``" + (f": {plain(why)}" if why else "") for text, why in fields(thing)]
        lines += ["", ".. rubric:: Fields", "", *own, ""] if own else []


def leave_out_signature(app: Sphinx, what: str, name: str, thing: Any, *rest: Any) -> Any:
    """A class of fields lists them with types and defaults: once is enough."""
    return ("", "") if has_fields(thing) else None


def skip(app: Sphinx, what: str, name: str, thing: Any, *rest: Any) -> bool | None:
    """Leave out what Python itself says of the fields of a named tuple."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("autodoc-process-docstring", add_fields)
    app.connect("autodoc-process-signature", leave_out_signature)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
