"""Pages complete in themselves: templates filled in, files put in their place."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from secureafl.core.errors import RunError
from secureafl.core.files import put_file
from secureafl.presentation.style import style_sheet
from secureafl.report.drawing import Picture
from secureafl.report.formatting import number, percent

PAGE = "index.html"
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
    environment.filters |= {"number": number, "percent": percent, "data_uri": _data_uri, **filters}
    return environment.get_template(template).render(values)


def _source(name: str) -> str:
    if name == "style.css":
        return style_sheet()
    return resources.files("secureafl.report").joinpath(name).read_text(encoding="utf-8")


def _data_uri(svg: bytes) -> str:
    # As an image an SVG can run no script, and its ids cannot clash with those of another.
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def save(out: Path, pages: Mapping[str, str], pictures: Iterable[Picture]) -> None:
    """Write a page, what belongs to it and its pictures into `out`."""
    remedy = "choose another --out"
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = out / PAGE
        if old.exists() and _MARK not in old.read_bytes()[:4096]:
            raise RunError(f"{old}: is not a report of SecureAFL and is kept; {remedy}")
        for picture in pictures:
            put_file(out / picture.file, picture.svg)
        for name, page in pages.items():
            # Names of files may hold bytes that are no text.
            put_file(out / name, page.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror}); {remedy}") from error
