"""`secureafl init`: an experiment and a task to edit; `secureafl export`: the trained model."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from secureafl.core.errors import ConfigError

INIT_EXAMPLE = "Example: secureafl init my-project"
EXPORT_EXAMPLE = "Example: secureafl export runs/first model.pt"
_FILES = ("experiment.toml", "my_task.py")


def init(
    folder: Annotated[
        Path, typer.Argument(help="Folder to put them in; it is made if there is none.")
    ] = Path(),
) -> None:
    """Write an experiment and a task of your own to start from; nothing is replaced."""
    for name in _FILES:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name}: already there; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            template = resources.files("secureafl.cli").joinpath("templates", name)
            (folder / name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    here = "" if folder == Path() else f"cd {folder}\n"
    print(f"{folder / _FILES[0]}: the settings\n{folder / _FILES[1]}: data and model")
    print(f"now edit them, then:\n{here}secureafl run {_FILES[0]}")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, of a finished run.")],
    to: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="model.pt: weights and standardisation, for torch.load; model.pt2: a program of "
            "torch.export; model.onnx: of ONNX (extra onnx).",
        ),
    ],
) -> None:
    """Write the trained model to a file for other programs."""
    from secureafl.library.export import export_model

    print(export_model(run, to))
