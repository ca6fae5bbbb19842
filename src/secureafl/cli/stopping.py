"""Commands that can be stopped and continued."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def stoppable(how_to_go_on: str) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that workers save checkpoints; then say how to go on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {how_to_go_on}", file=sys.stderr)
        raise typer.Exit(130) from None
