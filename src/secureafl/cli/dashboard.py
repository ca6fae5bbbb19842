"""`secureafl dashboard`: a live page of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: secureafl dashboard runs/first --port 8484"
TOKEN = "SECUREAFL_TOKEN"


def dashboard(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN-OR-FOLDER", help="A run folder, or a folder of them.")
    ],
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to serve on; others than this machine's need a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0: any free one.")
    ] = 8484,
) -> None:
    """Show runs, live or finished, on a web page: curves, filter, and every client by suspicion.

    The token is made up, unless the environment variable SECUREAFL_TOKEN holds one.
    """
    import secrets

    from secureafl.dashboard.access import is_loopback
    from secureafl.dashboard.server import Dashboard

    token = os.environ.get(TOKEN) or (None if is_loopback(host) else secrets.token_urlsafe(24))
    with Dashboard(folder, host, port, token) as server:
        print(f"dashboard: {server.address}  (Ctrl+C ends it)", flush=True)
        server.serve_forever()
