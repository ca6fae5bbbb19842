"""Files that others may be reading."""

import os
from pathlib import Path


def put_file(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)


def put_new_file(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, whole or not at all; one that is there stays."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    try:
        os.link(fresh, path)  # unlike a rename, it fails if another process was first
    except FileExistsError:
        pass
    except OSError:  # a file system without links; two processes at once are not told apart there
        fresh.replace(path)
    fresh.unlink(missing_ok=True)


def put_private_file(path: Path, content: bytes) -> None:
    """A file that only its owner reads; when this returns it is on the disk, or there is none."""
    fresh = path.with_name(f".{path.name}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    number = os.open(path.parent, os.O_RDONLY)  # names of files are on the disk too
    try:
        os.fsync(number)
    finally:
        os.close(number)
