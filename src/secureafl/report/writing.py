"""Pages complete in themselves: templates filled in, files put in their place."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from secureafl.core.errors import RunError
from secureafl.core.files import put_file
from secureafl.presentation.style import style_sheet
from secureafl.report.drawing import Picture, with_dark_colours
from secureafl.report.export import Table, as_csv, as_latex
from secureafl.report.formatting import number, percent

PAGE, TABLES = "index.html", "tables"
_MARK = b'<meta name="generator" content="SecureAFL report">'


def fill(template: str, filters: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """A template of this folder with its values; those of an HTML page are escaped."""
    environment = jinja2.Environment(
        autoescape=template.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_source),
    )
    environment.filters |= {"number": number, "percent": percent, "image": _image}
    environment.filters |= {"csv": _csv, "latex": _latex, **filters}
    return environment.get_template(template).render(values)


def _source(name: str) -> str:
    if name == "style.css":
        return style_sheet()
    return resources.files("secureafl.report").joinpath(name).read_text(encoding="utf-8")


def _image(svg: bytes) -> str:
    # As an image an SVG can run no script, and its ids cannot clash with those of another.
    return _data_uri("image/svg+xml", with_dark_colours(svg))


def _csv(table: Table) -> str:
    return _data_uri("text/csv", _encoded(as_csv(table)))


def _latex(table: Table) -> str:
    return _data_uri("application/x-tex", _encoded(as_latex(table)))


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _encoded(text: str) -> bytes:
    # Names of files may hold bytes that are no text.
    return text.encode("utf-8", "replace")


def save(
    out: Path,
    pages: Mapping[str, str],
    pictures: Iterable[Picture],
    tables: Sequence[Table] = (),
) -> None:
    """Write a page, what belongs to it, its pictures and its tables into `out`."""
    remedy = "choose another folder (out)"
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = out / PAGE
        if old.exists() and _MARK not in old.read_bytes()[:4096]:
            raise RunError(f"{old}: is not a report of SecureAFL and is kept; {remedy}")
        for picture in pictures:
            put_file(out / picture.file, picture.svg)
        if tables:
            (out / TABLES).mkdir(exist_ok=True)
        for table in tables:
            put_file(out / TABLES / f"{table.name}.csv", _encoded(as_csv(table)))
            put_file(out / TABLES / f"{table.name}.tex", _encoded(as_latex(table)))
        for name, page in pages.items():
            put_file(out / name, _encoded(page))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror}); {remedy}") from error
