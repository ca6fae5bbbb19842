"""The Flower app that `serve` submits, and Flower sends to the nodes.

It is a few lines: both parts are in this package, which is installed on either side. Flower wants
them assigned in a module of the app.
"""

from __future__ import annotations

from pathlib import Path

_SETTINGS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "secureafl-app"
version = "1.0.0"
description = "SecureAFL as a Flower app"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "secureafl"

[tool.flwr.app.components]
serverapp = "secureafl_app.server:app"
clientapp = "secureafl_app.client:app"

[tool.flwr.app.config]
experiment = ""
out = ""
attempt = ""
"""
_PART = "from secureafl.deployment import {part}_app\n\napp = {part}_app.app\n"


def write_app(folder: Path) -> None:
    """Make the app's folder."""
    package = folder / "secureafl_app"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_SETTINGS)
    (package / "__init__.py").touch()
    for part in ("server", "client"):
        (package / f"{part}.py").write_text(_PART.format(part=part))
