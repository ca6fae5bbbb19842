"""The check of a task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from secureafl.core.errors import ConfigError
from secureafl.core.flat_model import FlatModel, flatten
from secureafl.core.protocols import Task
from secureafl.core.types import Data
from secureafl.experiment import Training
from secureafl.runtime.clients import Clients
from secureafl.runtime.model_checks import check_model, refuse_hidden_state, require_trainable
from secureafl.testing.rules import (
    ContractError,
    check_kind,
    check_repeats,
    demand,
    in_one_line,
    no_host_reads,
    on_meta,
)

_BATCH = 4  # samples


@in_one_line
def check_task(task: Task) -> None:
    """Raise a `ContractError` of one line if a task's data, model, loss and metrics do not fit.

    Its data are loaded, and its model is trained for one batch. Found are: labels of another dtype
    or without an input; outputs that do not fit the labels; a loss or a metric that is not finite;
    a first metric that is higher where the loss is lower; a model that keeps something beside its
    flat vector, reads values on the host, or differs when it is made again with the same seed.

    >>> secureafl.testing.check_task(secureafl.tasks.FashionMnist(data_dir="embedded"))
    """
    name = check_kind(task, Task, "check_task")
    data, model = task.load(), task.model()
    _check_data(data, name)
    kind = type(model).__name__
    module = isinstance(model, nn.Module)
    demand(module, f"{name}.model", f"it is of type {kind}", "give a torch.nn.Module")
    _check(lambda: require_trainable(model), name)
    clients = Clients(task, data, model, Training(batch_size=_BATCH))
    _check(lambda: refuse_hidden_state(clients), name)
    rows = torch.arange(min(_BATCH, len(data.train_labels)))
    _check_training(clients, rows, name)
    _check(lambda: check_model(clients), name)
    gradient = clients.update(flatten(model), rows)
    finite = bool(torch.isfinite(gradient).all())
    remedy = "look at the loss and at the scale of the inputs"
    demand(finite, f"{name}.loss", "its gradient is not finite", remedy)
    _check_metrics(task, clients, name)
    with no_host_reads(f"{name}.model"):
        inputs, _ = clients.batch(rows)
        FlatModel(task.model().to("meta")).train(flatten(model).to("meta"), on_meta(inputs))
    check_repeats(lambda: _same_seed(task), f"{name}.model")


def _same_seed(task: Task) -> list[Tensor]:
    torch.manual_seed(0)
    return [flatten(task.model())]


def _check_data(data: Any, name: str) -> None:
    where = f"{name}.load"
    kind = f"it gives a {type(data).__name__}"
    demand(isinstance(data, Data), where, kind, "use secureafl.from_tensors or from_datasets")
    parts = {
        "training": (data.train_inputs, data.train_labels),
        "test": (data.test_inputs, data.test_labels),
    }
    for part, (inputs, labels) in parts.items():
        shapes = f"{part} inputs are {tuple(inputs.shape)}, labels {tuple(labels.shape)}"
        fits = len(inputs) > 0 and labels.shape == inputs.shape[:1]
        demand(fits, where, shapes, "give one label for each, and at least one sample")
        right = labels.dtype in (torch.int64, torch.float32)
        remedy = "give int64 (classes, from 0) or float32 (a regression)"
        demand(right, where, f"{part} labels are {labels.dtype}", remedy)
        lowest = int(labels.min()) if labels.dtype == torch.int64 else 0
        demand(lowest >= 0, where, f"a label is {lowest}", "number classes from 0")


def _check(refuse: Callable[[], None], name: str) -> None:
    """What a run would refuse, as what the task does wrong."""
    try:
        refuse()
    except ConfigError as error:
        raise ContractError(f"{name}.{error}") from None


def _check_training(clients: Clients, rows: Tensor, name: str) -> None:
    """Raise unless outputs fit the labels, and the loss is one number."""
    task, data, model = clients.task, clients.data, clients.model
    inputs, labels = clients.batch(rows)
    outputs = model(inputs)
    shapes = f"outputs are {tuple(outputs.shape)} for labels {tuple(labels.shape)}"
    if labels.dtype == torch.int64:
        classes = 1 + int(max(data.train_labels.max(), data.test_labels.max()))
        fits = outputs.dim() >= 2 and len(outputs) == len(labels) and outputs.shape[1] >= classes
        remedy = f"give a row for each sample, a column for each of {classes} classes"
    else:
        fits, remedy = outputs.shape == labels.shape, "give one number for each, as nn.Flatten(0)"
    demand(fits, f"{name}.model", shapes, remedy)
    loss = task.loss(outputs, labels)
    single = isinstance(loss, Tensor) and loss.dim() == 0
    kind = f"it is {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"it is {loss!r}"
    demand(single, f"{name}.loss", kind, "give the mean over the batch, a tensor")
    value = loss.item()
    demand(math.isfinite(value), f"{name}.loss", f"it is {value}", "give a finite number")


def _check_metrics(task: Task, clients: Clients, name: str) -> None:
    outputs = clients.test_outputs(flatten(clients.model))
    found = task.metrics(outputs, clients.data.test_labels)
    right = isinstance(found, dict) and len(found) > 0
    demand(right, f"{name}.metrics", f"it gives {found!r}", 'give {"name": number}, the main first')
    for key, value in found.items():
        finite = isinstance(value, float) and math.isfinite(value)
        remedy = "give a finite float: float(tensor)"
        demand(finite, f"{name}.metrics[{key!r}]", f"it is {value!r}", remedy)
