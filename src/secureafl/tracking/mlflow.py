"""MLflow: settings as parameters, curves as metrics over steps, and the result."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from secureafl.tracking.tracker import Tracker, needs


class MLflow(Tracker):
    """Runs of an MLflow experiment, on the server `uri` or in files.

    Without a `uri`, the environment's `MLFLOW_TRACKING_URI` is used, else the folder `mlruns`.
    """

    def __init__(self, experiment: str = "secureafl", uri: str = "") -> None:
        super().__init__()
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:  # files need no database's packages, but MLflow wants to be told
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with needs("mlflow"):
            self._entities = importlib.import_module("mlflow.entities")
            library = importlib.import_module("mlflow")
        self._client = library.MlflowClient(uri or Path("mlruns").absolute().as_uri())
        self._experiment = experiment

    def open(self, run: Path, settings: dict[str, Any]) -> str:
        """Begin a run and log its parameters."""
        known = self._client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known else self._client.create_experiment(self._experiment)
        tags = {"run_folder": str(run.absolute())}
        record = self._client.create_run(place, tags=tags, run_name=run.name).info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(record, params=params)
        return record

    def log(self, record: str, figures: dict[str, float], round: int) -> None:
        """Add a point to each metric."""
        now = int(time.time() * 1000)
        points = [self._entities.Metric(name, x, now, round) for name, x in figures.items()]
        self._client.log_batch(record, metrics=points)

    def close(self, record: str, figures: dict[str, float], finished: bool) -> None:
        """Add the result and the state."""
        self.log(record, figures, 0)
        self._client.set_terminated(record, "FINISHED" if finished else "KILLED")
