"""A module tried on a few samples, before anything is trained: do the two fit?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secureafl.core.errors import ConfigError, DataError
from secureafl.runtime.model_checks import require_rows, token_remedy
from secureafl.tasks.samples import Samples

_FEW = 4  # samples
_REGRESSION = "for a regression give labels.astype(float)"


def prepare(module: nn.Module, train: Samples, test: Samples) -> tuple[Samples, Samples]:
    """Samples with inputs of a type that the module takes, and whose labels fit its outputs.

    Whole numbers may be meant as tokens or as figures: what the module takes decides.
    """
    _refuse_unlike(train, test)
    dtype, outputs = _try_types(module, train[0], test[0].dtype)
    _check_outputs(outputs, train, test)
    return (train[0].to(dtype), train[1]), (test[0].to(dtype), test[1])


def _refuse_unlike(train: Samples, test: Samples) -> None:
    """Raise if test samples are of another form than those to train with."""
    shapes = tuple(train[0].shape[1:]), tuple(test[0].shape[1:])
    if shapes[0] != shapes[1]:
        raise DataError(f"test: inputs are {shapes[1]}, those of data {shapes[0]}; give both alike")
    for name, now, then in (
        ("inputs", test[0].dtype, train[0].dtype),
        ("labels", test[1].dtype, train[1].dtype),
    ):
        # Whole and real figures can be mixed; bytes, which are scaled, with neither.
        mixed = name == "inputs" and {now, then} != {torch.uint8, torch.float32}
        if now != then and not mixed:
            raise DataError(f"test: {name} are {now}, those of data {then}; give both alike")


def _try_types(module: nn.Module, inputs: Tensor, other: torch.dtype) -> tuple[torch.dtype, Tensor]:
    """The type of inputs that the module takes, and its outputs for the first of them."""
    wanted = [inputs.dtype]
    if inputs.dtype != other:  # bytes in one part, say, and whole numbers in the other
        wanted = [torch.promote_types(inputs.dtype, other)]
    if wanted[0] == torch.int64:
        wanted += [torch.float32]
    elif wanted[0] == torch.uint8:
        wanted += [torch.int64]  # tokens
    errors: dict[torch.dtype, Exception] = {}
    for dtype in wanted:
        shown = inputs[:_FEW].to(dtype)
        shown = shown.float() if dtype == torch.uint8 else shown
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return dtype, module.eval()(shown)
        except Exception as error:  # whatever a module of the user's raises
            errors[dtype] = error
    raise _refusal(module, inputs, errors)


def _refusal(
    module: nn.Module, inputs: Tensor, errors: dict[torch.dtype, Exception]
) -> ConfigError:
    """The error about a module that takes the inputs in no form; real numbers tell most."""
    embeds = any(isinstance(layer, nn.Embedding) for layer in module.modules())
    shape, last = tuple(inputs.shape[1:]), list(errors)[-1]
    dtype = torch.int64 if embeds and torch.int64 in errors else last
    if not embeds and torch.uint8 in errors:
        dtype = torch.uint8
    why = " ".join(str(errors[dtype]).split())[:160]
    remedy = _hint(module, shape)
    if embeds and not inputs.is_floating_point():
        remedy = token_remedy(inputs)
    return ConfigError(f"model: it refuses inputs of shape {shape} ({why}); {remedy}")


def _hint(module: nn.Module, shape: tuple[int, ...]) -> str:
    kinds = {type(layer) for layer in module.modules()}
    convolves = nn.Conv2d in kinds
    if convolves and len(shape) == 2:
        return "give images a channel: inputs[:, None]"
    if convolves and len(shape) == 3 and shape[-1] in (1, 3, 4) and shape[0] not in (1, 3, 4):
        return "put the channels first: inputs.transpose(0, 3, 1, 2)"
    if len(shape) > 1 and not kinds & {nn.Conv2d, nn.Flatten}:
        return "reshape the inputs, or begin the model with nn.Flatten()"
    return "reshape the inputs, or change the model's first layer"


def _check_outputs(outputs: object, train: Samples, test: Samples) -> None:
    """Raise unless there is an output for each class, or one for each number."""
    shape = require_rows(outputs, min(_FEW, len(train[0])))
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
        raise DataError(f"data: a label is {lowest}; number classes from 0; {_REGRESSION}")
    if len(shape) != 2:
        remedy = f"end it with a column for each of {highest + 1} classes"
        told = f"outputs are {shape} and labels classes; {remedy}; {_REGRESSION}"
        raise ConfigError(f"model: {told}")
    if shape[1] == 1:
        told = "1 output a sample, and labels are classes; give one output for each of"
        raise ConfigError(f"model: {told} {highest + 1} classes; {_REGRESSION}")
    if highest >= shape[1]:
        fits = f"which needs {highest + 1} outputs of the model, and it has {shape[1]}"
        raise ConfigError(
            f"data: labels reach {highest}, {fits}; number classes from 0, or widen it"
        )
