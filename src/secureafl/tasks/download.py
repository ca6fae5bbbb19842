"""Downloads of data sets: resumed after a stop, checked, and in place as a whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from secureafl.core.errors import DataError
from secureafl.tasks.sources import Download, Source

_CHUNK = 1 << 20  # bytes
_SECONDS = 60.0  # without a byte, then it is given up
_ARCHIVES = (".tar.gz", ".zip")


class Step(NamedTuple):
    """The progress of one file, in bytes."""

    file: str
    done: int
    total: int | None  # None while unknown


def download(source: Source, home: Path) -> Iterator[Step]:
    """Download a data set into `home`; yields the progress as bytes arrive.

    What arrived before a stop is kept in `NAME.part`, and the next call continues from there.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        for file in source.downloads:
            packed = file.name.endswith(_ARCHIVES)
            if packed and (home / source.folder).exists():
                held = f"{home / source.folder}: is there already"
                raise DataError(f"{held}; move it away to have it downloaded")
            into = home if packed else home / source.folder
            into.mkdir(exist_ok=True)
            if not (into / file.name).is_file():
                yield from _fetched(file, into)
            if packed:
                _unpack(home / file.name, home, source.folder)
    except OSError as error:
        raise DataError(f"{home}: cannot be written ({error}); give another --data-dir") from error


def _fetched(file: Download, folder: Path) -> Iterator[Step]:
    part = folder / f"{file.name}.part"
    yield from _received(file, part)
    digest = hashlib.md5(usedforsecurity=False)
    with part.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.md5:
        part.unlink()
        raise DataError(f"{file.url}: has another checksum than published; download it again")
    part.replace(folder / file.name)


def _received(file: Download, part: Path) -> Iterator[Step]:
    """Download the missing bytes and append them to `part`."""
    have = part.stat().st_size if part.exists() else 0
    asked = urllib.request.Request(file.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            have = have if answer.status == http.client.PARTIAL_CONTENT else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if have else "wb") as kept:
                yield from _copied(answer, kept, Step(file.name, have, total))
    except urllib.error.HTTPError as error:
        error.close()
        # All of it was there already: the checksum will tell.
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise DataError(f"{file.url}: the site says {error.code}; see its home page") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        again = "the same command goes on where it stopped"
        raise DataError(f"{file.url}: cannot be downloaded ({error}); {again}") from error


def _copied(answer: IO[bytes], kept: IO[bytes], step: Step) -> Iterator[Step]:
    yield step
    while chunk := answer.read(_CHUNK):
        kept.write(chunk)
        step = step._replace(done=step.done + len(chunk))
        yield step
    if step.total is not None and step.done < step.total:
        raise http.client.IncompleteRead(b"", step.total - step.done)


def _unpack(archive: Path, home: Path, folder: str) -> None:
    fresh = home / f".{folder}.{os.getpid()}"
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(fresh)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(fresh, filter="data")  # nothing outside, no devices
        (fresh / folder).rename(home / folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, FileNotFoundError) as error:
        raise DataError(
            f"{archive}: cannot be unpacked ({error}); delete it and try again"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    archive.unlink()
