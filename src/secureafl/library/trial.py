"""A module tried on a few samples, before anything is trained: do the two fit?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secureafl.core.errors import ConfigError, DataError
from secureafl.tasks.samples import Samples

_FEW = 4  # samples


def prepare(module: nn.Module, train: Samples, test: Samples) -> tuple[Samples, Samples, Tensor]:
    """Samples with inputs of a type that the module takes, and its outputs for a few of them.

    Whole numbers may be meant as tokens or as figures: what the module takes decides.
    """
    for (inputs, labels), part in ((train, "data"), (test, "test")):
        if not len(inputs):
            raise DataError(f"{part}: there are no samples; give at least 1")
        _refuse_not_finite(inputs, f"{part}: inputs")
        _refuse_not_finite(labels, f"{part}: labels")
    shapes = tuple(train[0].shape[1:]), tuple(test[0].shape[1:])
    if shapes[0] != shapes[1]:
        raise DataError(f"test: inputs are {shapes[1]}, those of data {shapes[0]}; give both alike")
    if train[1].dtype != test[1].dtype:
        kinds = f"labels are {test[1].dtype}, those of data {train[1].dtype}"
        raise DataError(f"test: {kinds}; give both alike")
    dtype, outputs = _try_types(module, train[0], test[0].dtype)
    _check_outputs(outputs, train, test)
    return (train[0].to(dtype), train[1]), (test[0].to(dtype), test[1]), outputs


def _refuse_not_finite(values: Tensor, what: str) -> None:
    if values.is_floating_point():
        good = torch.isfinite(values.reshape(len(values), -1)).all(dim=1)
        if not good.all():
            bad = int((~good).sum())
            first = int((~good).nonzero()[0])
            told = f"{what} of {bad:,} samples are not finite, first of sample {first}"
            raise DataError(f"{told}; fill them in or remove those samples")


def _try_types(module: nn.Module, inputs: Tensor, other: torch.dtype) -> tuple[torch.dtype, Tensor]:
    """The type of inputs that the module takes, and its outputs for the first of them."""
    wanted = [inputs.dtype]
    if inputs.dtype != other:  # bytes in one part, say, and whole numbers in the other
        wanted = [torch.promote_types(inputs.dtype, other)]
    if wanted[0] == torch.int64:
        wanted += [torch.float32]
    elif wanted[0] == torch.uint8:
        wanted += [torch.int64]  # tokens
    errors = []
    for dtype in wanted:
        shown = inputs[:_FEW].to(dtype)
        shown = shown.float() if dtype == torch.uint8 else shown
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return dtype, module.eval()(shown)
        except Exception as error:  # whatever a module of the user's raises
            errors.append(error)
    # The last try is with real numbers, or the only one; tokens that fail say less.
    error = errors[0] if wanted[0] == torch.uint8 else errors[-1]
    why = " ".join(str(error).split())[:160]
    shape = tuple(inputs.shape[1:])
    raise ConfigError(f"model: it refuses inputs of shape {shape} ({why}); {_hint(module, shape)}")


def _hint(module: nn.Module, shape: tuple[int, ...]) -> str:
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    if convolves and len(shape) == 2:
        return "give images a channel: inputs[:, None]"
    if convolves and len(shape) == 3 and shape[-1] in (1, 3, 4) and shape[0] not in (1, 3, 4):
        return "put the channels first: inputs.transpose(0, 3, 1, 2)"
    if len(shape) > 1 and not convolves:
        return "reshape the inputs, or begin the model with nn.Flatten()"
    return "reshape the inputs, or change the model's first layer"


def _check_outputs(outputs: object, train: Samples, test: Samples) -> None:
    """Raise unless there is an output for each class, or one for each number."""
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise ConfigError(f"model: its output is of type {kind}; give a module that gives a tensor")
    few = min(_FEW, len(train[0]))
    shape = tuple(outputs.shape)
    if not shape or shape[0] != few:
        raise ConfigError(f"model: outputs are {shape} for {few} samples; give a row for each")
    labels = torch.cat([train[1], test[1]])
    if labels.is_floating_point():
        _check_regression(labels, shape)
    else:
        _check_classes(labels, shape)


def _check_regression(labels: Tensor, shape: tuple[int, ...]) -> None:
    columns = torch.Size(shape[1:]).numel()
    if columns != 1:
        whole = bool((labels == labels.round()).all())
        remedy = "give whole labels, labels.astype(int)" if whole else "end it with one output"
        kind = "labels are real numbers"
        raise ConfigError(f"model: {columns} outputs a sample, and {kind}; {remedy}")


def _check_classes(labels: Tensor, shape: tuple[int, ...]) -> None:
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        raise DataError(f"data: a label is {lowest}; number classes from 0")
    if len(shape) != 2:
        remedy = f"end it with a column for each of {highest + 1} classes"
        raise ConfigError(f"model: outputs are {shape} and labels classes; {remedy}")
    if highest >= shape[1]:
        fits = f"the model has {shape[1]} outputs, for classes 0 to {shape[1] - 1}"
        remedy = f"number classes from 0, or give it {highest + 1} outputs"
        raise ConfigError(f"data: a label is {highest}, and {fits}; {remedy}")
