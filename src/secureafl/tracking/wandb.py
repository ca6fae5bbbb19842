"""Weights & Biases: settings as the config, curves over rounds, the result as the summary."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from secureafl.tracking.tracker import Tracker, needs


class WeightsAndBiases(Tracker):
    """Runs of a project; each is kept in the run's own folder, below `wandb`.

    Nothing is sent anywhere unless `mode`, or without it the environment's `WANDB_MODE`, is
    "online"; `wandb sync` uploads later.
    """

    def __init__(self, project: str = "secureafl", mode: str = "") -> None:
        super().__init__()
        self._project, self._mode = project, mode or os.environ.get("WANDB_MODE", "offline")
        with needs("wandb"):
            self._library = importlib.import_module("wandb")

    def open(self, run: Path, settings: dict[str, Any]) -> Any:
        """Begin a run, beside others that may be going on."""
        return self._library.init(
            project=self._project,
            name=run.name,
            dir=str(run),
            mode=self._mode,
            config=settings,
            reinit="create_new",
            # The terminal is ours, and nothing beyond the figures is recorded.
            settings=self._library.Settings(console="off", silent=True, x_disable_stats=True),
        )

    def log(self, record: Any, figures: dict[str, float], round: int) -> None:
        """Add a point to each curve."""
        record.log(figures, step=round)

    def close(self, record: Any, figures: dict[str, float], finished: bool) -> None:
        """Write the result into the summary."""
        record.summary.update(figures)
        record.finish(exit_code=0 if finished else 1)
