"""`secureafl data`: what data sets are found where, and how the others are fetched."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: secureafl data cifar10 --download"
_WORDS = {
    True: "as published",
    False: "other than published: a part, or written anew",
    None: "no checksums are known",
}


class Named(StrEnum):
    """The data sets there are."""

    fashion_mnist = "fashion_mnist"
    cifar10 = "cifar10"
    cifar100 = "cifar100"
    tiny_imagenet = "tiny_imagenet"
    udacity = "udacity"


def data(
    task: Annotated[
        Named | None,
        typer.Argument(metavar="TASK", help=f"{', '.join(Named)}; without one, all."),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch it from its own site if it is not there.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the data sets; default: SECUREAFL_DATA, or data."
        ),
    ] = None,
) -> None:
    """Show which data sets are found where, check them, and fetch what is missing."""
    names = [task.value] if task else [name.value for name in Named]
    if download:
        for name in names:
            _download(name, data_dir, only=bool(task))
    _show(names, data_dir)


def _download(name: str, data_dir: Path | None, only: bool) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    from secureafl.core.errors import DataError
    from secureafl.tasks.download import download
    from secureafl.tasks.places import data_home
    from secureafl.tasks.sources import SOURCES

    source, home = SOURCES[name], data_dir or data_home()
    if _state(name, data_dir)[1] == _WORDS[True]:
        return
    if not only and (not source.downloads or (home / source.folder).exists()):
        return
    if not source.downloads:
        raise DataError(f"{name}: cannot be downloaded; {source.by_hand} (see {source.page})")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        bars: dict[str, TaskID] = {}
        for step in download(source, home):
            if step.file not in bars:
                bars[step.file] = progress.add_task(step.file)
            progress.update(bars[step.file], completed=step.done, total=step.total)


def _show(names: list[str], data_dir: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("data set", "found", "its files", show_lines=True)
    for name in names:
        table.add_row(name, *map(Text, _state(name, data_dir)))
    Console().print(table)


def _state(name: str, data_dir: Path | None) -> tuple[str, str]:
    """What is found, and whether it is what was published."""
    from secureafl.core.errors import DataError
    from secureafl.tasks import TASKS
    from secureafl.tasks.sources import SOURCES, as_published

    source = SOURCES[name]
    task = TASKS[name](data_dir=str(data_dir or ""))
    try:
        found = task.load()
        published = as_published(source, task.folder())
    except DataError as error:
        get = f"secureafl data {name} --download" if source.downloads else source.by_hand
        return str(error).partition("; see ")[0], f"to get it: {get} ({source.page})"
    return f"{found.source}, checksum {found.fingerprint}", _WORDS[published]
