"""TensorBoard: curves, settings as text, and results side by side under HPARAMS."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from secureafl.tracking.tracker import Tracker, needs


class TensorBoard(Tracker):
    """Writes the folder `tensorboard` of each run; see them with `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        super().__init__()
        with needs("tensorboard"):
            importlib.import_module("tensorboard")
            self._library = importlib.import_module("torch.utils.tensorboard")

    def open(self, run: Path, settings: dict[str, Any]) -> Any:
        """Write the settings as a table."""
        # Purged from round 0: a run that goes on is told from there, in the same folder.
        writer = self._library.SummaryWriter(str(run / "tensorboard"), purge_step=0)
        rows = [f"| {name} | {value} |" for name, value in settings.items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        writer.flush()
        return writer, settings

    def log(self, record: Any, figures: dict[str, float], round: int) -> None:
        """Add a point to each curve."""
        writer, _ = record
        for name, value in figures.items():
            writer.add_scalar(name, value, round)
        writer.flush()

    def close(self, record: Any, figures: dict[str, float], finished: bool) -> None:
        """Write the result where runs are compared."""
        writer, settings = record
        if finished:
            writer.add_hparams(settings, figures, run_name=".")
        writer.close()
