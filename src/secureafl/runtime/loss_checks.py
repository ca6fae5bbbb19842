"""The checks of a task's loss and metrics on made-up and real outputs, before the first round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from secureafl.core.protocols import Task

_LABELS = 100  # that a metric is shown, right and wrong


def first_line(error: Exception) -> str:
    """What an error says, short enough for one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


@torch.no_grad()
def refuse_loss(task: Task, outputs: Tensor, labels: Tensor) -> None:
    """Raise unless the loss of a batch is the finite mean of its samples' losses."""
    given = f"it gets outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}"
    try:
        with warnings.catch_warnings():
            # What torch only warns of: each output would be compared with each label.
            warnings.filterwarnings("error", message="Using a target size")
            found = task.loss(outputs, labels)
            twice = task.loss(torch.cat([outputs, outputs]), torch.cat([labels, labels]))
    except Exception as error:  # whatever a function of the user's raises
        raise ConfigError(f"loss: {first_line(error)}; {given}") from error
    if not isinstance(found, Tensor) or found.dim() != 0:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"loss: it gives {shape}; give the mean over a batch, a tensor")
    value = float(found)
    if not math.isfinite(value):
        remedy = "look at the loss and at the scale of the inputs"
        raise ConfigError(f"loss: it is {value} before the first round; {remedy}")
    if abs(value) > 1e-6 and math.isclose(float(twice), 2 * value, rel_tol=1e-4):
        raise ConfigError("loss: a batch twice as long has twice the loss; give the mean over it")


@torch.no_grad()
def refuse_metrics(task: Task, outputs: Tensor, labels: Tensor) -> None:
    """Raise unless the metrics of a whole test set are numbers, and the first is an error.

    The outputs, real ones of a few samples, stand for those of all samples.
    """
    shown = outputs[torch.arange(len(labels), device=outputs.device) % len(outputs)]
    try:
        found = task.metrics(shown, labels)
        told = {str(name): float(value) for name, value in found.items()}
    except Exception as error:  # whatever a function of the user's raises
        what = f"{first_line(error)}; it gets outputs and labels on {labels.device}"
        raise ConfigError(f"metrics: {what}, and gives a dict of numbers") from error
    if not told:
        raise ConfigError("metrics: it gives an empty dict; give the main metric first")
    _refuse_score(task, outputs.shape[1:], labels[:_LABELS])


def _refuse_score(task: Task, shape: torch.Size, labels: Tensor) -> None:
    """Raise if the first metric is higher where the loss is lower: it should be an error.

    Both are shown outputs that are right, and outputs that are wrong. Where they cannot be told
    such outputs, or do not know the difference, nothing is known.
    """
    try:
        good, bad = _right_and_wrong(shape, labels)
        better = bool(task.loss(good, labels) < task.loss(bad, labels))
        (name, high), (_, low) = (_first(task.metrics(x, labels)) for x in (good, bad))
    except Exception:  # of functions of the user's, for which these may be no outputs
        return
    if better and high > low:
        remedy = f"give an error first, where lower is better, such as 1 - {name}"
        raise ConfigError(f"metrics: {name!r} is higher for better outputs; {remedy}")


def _first(metrics: Mapping[str, float]) -> tuple[str, float]:
    name, value = next(iter(metrics.items()))
    return name, float(value)


def _right_and_wrong(shape: torch.Size, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of that shape as the labels say, and others."""
    if labels.is_floating_point():
        return labels.view(-1, *shape), (2 * labels.mean() - labels).view(-1, *shape)
    good, bad = (one_hot(x, shape[0]).float() for x in (labels, (labels + 1) % shape[0]))
    return good, bad
