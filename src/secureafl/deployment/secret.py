"""The seed of what a defence draws and clients must not know: drawn once, kept with the run.

The journal alone does not lead to the same state again where a defence draws at its start. So the
seed is in a private file, from before the first upload is applied.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.core.files import put_private_file
from secureafl.runs.layout import SERVER

SECRET = Path(SERVER) / "secret"
_WHY = "without it the rounds that were applied cannot be computed again"


def keep_secret(run: Path, begun: bool) -> int:
    """The run's seed; a run that is not begun gets one if it has none."""
    path = run / SECRET
    try:
        return int(path.read_text())
    except FileNotFoundError:
        if begun:
            raise RunError(f"{path}: missing; put it back from a copy, {_WHY}") from None
    except ValueError:
        raise RunError(f"{path}: damaged; put it back from a copy, {_WHY}") from None
    seed = secrets.randbits(63)
    put_private_file(path, str(seed).encode())
    return seed
