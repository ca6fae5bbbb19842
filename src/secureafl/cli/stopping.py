"""Commands that can be stopped and gone on with."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def stoppable(how_to_go_on: str) -> Iterator[None]:
    """Being told to stop is an interrupt, so that the workers are stopped and save checkpoints."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {how_to_go_on}", file=sys.stderr)
        raise typer.Exit(130) from None
