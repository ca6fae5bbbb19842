"""The seed of what a defence draws and clients must not know: drawn once, kept with the run.

The journal alone does not lead to the same state again where a defence draws at its start. So the
seed is in a private file, from before the first upload is applied.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.core.files import put_private_file
from secureafl.runs.layout import SERVER

SECRET = Path(SERVER) / "secret"
_WHY = "without it the rounds that were applied cannot be computed again"


def keep_secret(run: Path, begun: bool) -> int:
    """The run's seed; a run that is not begun gets one if it has none."""
    if begun or (run / SECRET).exists():
        return read_secret(run)
    seed = secrets.randbits(63)
    put_private_file(run / SECRET, f"{seed} {_checksum(seed)}".encode())
    return seed


def read_secret(run: Path) -> int:
    """The seed of a run that has one."""
    path = run / SECRET
    try:
        seed, checksum = map(int, path.read_bytes().split())
    except FileNotFoundError:
        raise RunError(f"{path}: missing; put it back from a copy, {_WHY}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        seed, checksum = 0, -1
    if checksum != _checksum(seed):
        raise RunError(f"{path}: damaged; put it back from a copy, {_WHY}")
    return seed


def _checksum(seed: int) -> int:
    return zlib.crc32(str(seed).encode())
