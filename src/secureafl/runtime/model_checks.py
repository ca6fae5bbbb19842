"""The checks of a task's model on a few samples, before the first round.

What they find would otherwise end a run in its middle, or be a way from client to client that no
defence sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secureafl.core.contents import checksum
from secureafl.core.errors import ConfigError, SecureAflError
from secureafl.core.flat_model import (
    FlatModel,
    count_statistics,
    flatten,
    layout,
    mixes_samples,
    trained_parameters,
)
from secureafl.runtime.loss_checks import first_line, refuse_loss, refuse_metrics

if TYPE_CHECKING:
    from secureafl.runtime.clients import Clients

_FEW = 2  # samples of a batch
_USUAL = frozenset(vars(nn.Module()))  # what every module holds


def check_model(clients: Clients) -> None:
    """Raise unless clients can train the task's model by its loss, and its metrics fit."""
    refuse_mixing(clients)
    refuse_hidden_state(clients)
    outputs, labels = _outputs(clients)
    refuse_loss(clients.task, outputs, labels)
    refuse_failing_batch(clients)
    if len(clients.data.test_labels):  # a real client has nothing to test with
        refuse_metrics(clients.task, outputs, clients.data.test_labels)


def require_trainable(model: nn.Module) -> None:
    """Raise unless the model's parameters fit a vector of float32; frozen ones stay out of it."""
    trained = trained_parameters(model)
    if not trained:
        if next(model.parameters(), None) is None:
            raise ConfigError("model: it has no parameters to train; give one that has")
        raise ConfigError("model: all its parameters are frozen; unfreeze those that are to train")
    for name, value in trained.items():
        if value.dtype != torch.float32:
            raise ConfigError(f"model: {name!r} is {value.dtype}; give model.float()")
        if not is_lazy(value) and not torch.isfinite(value).all():
            raise ConfigError(f"model: {name!r} is not finite; initialise it anew")


def refuse_mixing(clients: Clients) -> None:
    """Raise if single samples are to be protected but the model cannot tell them apart."""
    privacy = clients.training.privacy
    if not privacy.off and privacy.unit == "example" and mixes_samples(clients.model):
        remedy = 'use norm = "group", or unit = "upload"'
        raise ConfigError(f"privacy.unit = 'example': BatchNorm mixes the samples; {remedy}")


@torch.no_grad()
def refuse_hidden_state(clients: Clients) -> None:
    """Raise if training changes anything of the model that is not in the flat vector.

    It would be a way from client to client that no defence sees. What a module makes at its first
    call and keeps, a table of positions say, is no such way.
    """
    model, weights = clients.model, flatten(clients.model)
    flat, before = FlatModel(model), weights.clone()
    buffers = {name: checksum(buffer) for name, buffer in model.named_buffers()}
    with _in_one_line(clients), torch.random.fork_rng(devices=[]):
        flat.train(weights, clients.batch(_rows(clients, 0))[0])
        kept = _attributes(model)
        flat.train(weights, clients.batch(_rows(clients, -_FEW))[0])
    for name, buffer in model.named_buffers():
        if checksum(buffer) != buffers.get(name):
            remedy = "of such layers only BatchNorm, with a momentum, can be used"
            raise ConfigError(f"model: training changes its buffer {name!r}; {remedy}")
    for name, now in _attributes(model).items():
        if kept.get(name) != now:
            remedy = "keep it in a variable, or make it a parameter"
            raise ConfigError(f"model: its forward changes the attribute {name!r}; {remedy}")
    if name := _renormalised(model) or _changed(model, before, weights):
        remedy = "leave out max_norm, and whatever else writes to weights"
        raise ConfigError(f"model: its forward changes the weights {name!r}; {remedy}")


def _rows(clients: Clients, first: int) -> Tensor:
    """Of the training samples, a batch of a few; never more than a client's batch has."""
    labels = clients.data.train_labels
    few = min(_FEW, clients.training.batch_size)
    return (torch.arange(few, device=labels.device) + first) % len(labels)


def _attributes(model: nn.Module) -> dict[str, str]:
    """Checksums of what the modules hold beside parameters, buffers and modules."""
    return {
        f"{name}.{key}".lstrip("."): checksum(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _USUAL
    }


def _renormalised(model: nn.Module) -> str | None:
    """The weights that a layer cuts itself when they are long, if there are some."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            return f"{name}.weight".lstrip(".")
    return None


def _changed(model: nn.Module, before: Tensor, now: Tensor) -> str | None:
    """The name of the first part of a flat vector that is not as it was."""
    shapes = layout(model)
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    pairs = zip(before.split(sizes), now.split(sizes), strict=True)
    same = [torch.equal(old, new) for old, new in pairs]
    return None if all(same) else [*shapes][same.index(False)]


@torch.no_grad()
def _outputs(clients: Clients) -> tuple[Tensor, Tensor]:
    """What the model says to a few samples after training, and their labels; tokens all fit."""
    data, weights, flat = clients.data, flatten(clients.model), FlatModel(clients.model)
    inputs, labels = clients.batch(_telling_rows(clients))
    with _in_one_line(clients):
        for raw in (data.train_inputs, data.test_inputs):
            if data.train_inputs.dtype == torch.int64 and len(raw):
                flat.outputs(weights, _outermost(raw))
        outputs = flat.outputs(weights, inputs)
    require_rows(outputs, len(labels))
    return outputs, labels


def require_rows(outputs: object, samples: int) -> tuple[int, ...]:
    """The shape of a model's outputs; raises unless they are a tensor with a row for each."""
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise ConfigError(f"model: its output is of type {kind}; give a module that gives a tensor")
    shape = tuple(outputs.shape)
    if not shape or shape[0] != samples:
        raise ConfigError(f"model: outputs are {shape} for {samples} samples; give a row for each")
    return shape


def _telling_rows(clients: Clients) -> Tensor:
    """A few samples, the first of the largest label, which the model may lack an output for."""
    return _rows(clients, int(clients.data.train_labels.argmax()))


def refuse_failing_batch(clients: Clients) -> None:
    """Raise in one line what torch would raise in the first rounds."""
    weights, rows = flatten(clients.model), _telling_rows(clients)
    with _in_one_line(clients), torch.random.fork_rng(devices=[]):
        inputs, labels = clients.batch(rows)
        flat = FlatModel(clients.model)
        flat.gradient(weights, inputs, lambda outputs: clients.task.loss(outputs, labels))
        _refuse_other_places(clients, inputs, labels)
    _refuse_unmapped(clients, weights, rows)


def _refuse_other_places(clients: Clients, inputs: Tensor, labels: Tensor) -> None:
    """Raise if the model takes a parameter from elsewhere than where it is registered.

    It would stay as it is, whatever clients upload.
    """
    model, weights = clients.model, flatten(clients.model).requires_grad_()
    named = trained_parameters(model)
    try:
        loss = clients.task.loss(FlatModel(model).outputs(weights, inputs), labels)
        (found,) = torch.autograd.grad(loss, weights, allow_unused=True)
        loss = clients.task.loss(model.eval()(inputs), labels)
        wanted = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    except RuntimeError:  # it has a gradient in training only, or none but by its own tensors
        return
    found = torch.zeros_like(weights) if found is None else found
    parts = found.split([*(value.numel() for value in named.values()), count_statistics(model)])
    for name, part, other in zip(named, parts, wanted, strict=False):
        if other is not None and bool(other.any()) and not bool(part.any()):
            remedy = "use it by the attribute that it is, not from a list or a table"
            raise ConfigError(f"model: its parameter {name!r} would not be trained; {remedy}")


def _outermost(inputs: Tensor) -> Tensor:
    """The samples with the smallest and with the largest token."""
    flat = inputs.reshape(len(inputs), -1)
    return inputs[torch.stack([flat.amin(dim=1).argmin(), flat.amax(dim=1).argmax()])]


def _refuse_unmapped(clients: Clients, weights: Tensor, rows: Tensor) -> None:
    """Raise if gradients of single samples are wanted, and the model has none."""
    privacy = clients.training.privacy
    if privacy.off or privacy.unit != "example":
        return
    draw = torch.tensor(0, device=weights.device)
    try:
        with torch.random.fork_rng(devices=[]):
            clients.private_gradient(weights, rows, draw)
    except Exception as error:  # whatever vmap raises about a module of the user's
        what = f"the model has no gradient of a single sample ({first_line(error)})"
        remedy = 'do without .item() and branches on tensors, or use unit = "upload"'
        raise ConfigError(f"privacy.unit = 'example': {what}; {remedy}") from error


@contextlib.contextmanager
def _in_one_line(clients: Clients) -> Iterator[None]:
    """Turn whatever a model or a loss of the user's raises into one line with a remedy."""
    try:
        yield
    except SecureAflError:
        raise
    except Exception as error:
        size = min(_FEW, clients.training.batch_size)
        what = f"it cannot be trained on a batch of {size} ({first_line(error)})"
        raise ConfigError(f"model: {what}; {_remedy(clients, error)}") from error


def _remedy(clients: Clients, error: Exception) -> str:
    """What to do about a batch that fails."""
    model, data = clients.model, clients.data
    if "does not require grad" in str(error):
        return "do without .item(), .numpy(), .detach() and torch.no_grad() in model and loss"
    if clients.training.batch_size == 1 and mixes_samples(model):
        return "for BatchNorm give training.batch_size = 2 or more"
    if any(getattr(layer, "sparse", False) is True for layer in model.modules()):
        return "leave out sparse=True"
    if data.train_inputs.dtype == torch.int64:
        return token_remedy(data.train_inputs, data.test_inputs)
    inputs, labels = tuple(data.train_inputs.shape[1:]), data.train_labels.dtype
    return f"it gets inputs of shape {inputs}, the loss its outputs and labels of {labels}"


def token_remedy(*inputs: Tensor) -> str:
    """What to do where an embedding may lack some of the tokens."""
    low, high = min(int(x.min()) for x in inputs), max(int(x.max()) for x in inputs)
    what = f"inputs reach from {low} to {high}"
    return f"{what}; number them from 0, and give the embedding as many rows"
