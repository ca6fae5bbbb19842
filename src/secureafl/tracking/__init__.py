"""Callbacks over the events of runs; the name after `--track` is the key here."""

from secureafl.tracking.callback import Callback
from secureafl.tracking.mlflow import MLflow
from secureafl.tracking.tensorboard import TensorBoard
from secureafl.tracking.wandb import WeightsAndBiases

TRACKERS: dict[str, type[Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
