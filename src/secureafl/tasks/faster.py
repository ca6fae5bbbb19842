"""Hand-written gradients and outputs, for models where they are faster than torch's layers."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from secureafl.kernels import reference
from secureafl.kernels.dispatch import on_gpu, version_for
from secureafl.kernels.gpu_cnn import MAX_IMAGES, cnn_gradient, cnn_outputs
from secureafl.tasks.classification import Classification
from secureafl.tasks.models.cnn import PaperCnn
from secureafl.tasks.models.resnet import ResNet20
from secureafl.tasks.models.resnet_gradient import resnet_gradient, resnet_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.protocols import Task

Found = TypeVar("Found")

_refused: list[Exception] = []  # why ResNet's kernels are not tried again in this process
_GREY = (1, 28, 28)  # images of the CNN
# Of a server's own samples. Torch's layers are about as fast with the thousands of a test set, and
# nothing has to be compiled for them.
_SOME_IMAGES = 256
_NUMBERS = 2**31  # in a tensor, which kernels count with 32 bits


def fast_gradient(
    task: Task, model: nn.Module, weights: Tensor, inputs: Tensor, labels: Tensor, mixed: bool
) -> tuple[Tensor, Tensor] | None:
    """As `FlatModel.gradient` of a batch's loss; None where only autograd has it.

    `mixed` is mixed precision, as there.
    """
    if not weights.dtype == inputs.dtype == torch.float32:
        return None
    if not on_gpu(weights):
        compiled = _compiled_for(model, weights, inputs)
        if compiled is None:
            return None
        found = compiled.cnn_gradient(weights, inputs, lambda outputs: task.loss(outputs, labels))
        return found, weights[:0]
    if not _trains_wholly(model):
        return None
    if type(model) is PaperCnn:
        return None if mixed else _of_cnn(task, weights, inputs, labels)
    return _of_resnet(task, model, weights, inputs, labels, mixed)


def fast_outputs(model: nn.Module, weights: Tensor, inputs: Tensor) -> Tensor | None:
    """As `FlatModel.outputs`, without a gradient; None where only the layers have them."""
    if on_gpu(weights):
        if _is_cnn(model, weights, inputs):
            return cnn_outputs(weights, inputs)
        return _resnet_outputs(model, weights, inputs)
    compiled = _compiled_for(model, weights, inputs)
    return compiled.cnn_outputs(weights, inputs) if compiled else None


def _compiled_for(model: nn.Module, weights: Tensor, inputs: Tensor) -> ModuleType | None:
    """The CNN's kernels for a CPU, if they fit."""
    if not (weights.is_cpu and _is_cnn(model, weights, inputs)):
        return None
    return None if version_for(weights) is reference else _cpu_cnn()


def _is_cnn(model: nn.Module, weights: Tensor, inputs: Tensor) -> bool:
    """Whether this is the paper's CNN, all of it trained, and these are images for it."""
    known = weights.dtype == inputs.dtype == torch.float32 and inputs.shape[1:] == _GREY
    return type(model) is PaperCnn and known and len(inputs) > 0 and _trains_wholly(model)


_trained_wholly: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _trains_wholly(model: nn.Module) -> bool:
    """Whether no parameter is frozen: kernels take all of them from the flat vector.

    It is looked up once: for ResNet-20 that takes a tenth of a gradient's time.
    """
    if model not in _trained_wholly:
        _trained_wholly[model] = all(value.requires_grad for value in model.parameters())
    return _trained_wholly[model]


@functools.cache
def _cpu_cnn() -> ModuleType:
    # Only where llvmlite is, which not everybody has.
    return importlib.import_module("secureafl.kernels.cpu_cnn")


def _of_cnn(
    task: Task, weights: Tensor, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor] | None:
    known = getattr(type(task), "loss", None) is Classification.loss
    if not (known and len(inputs) <= MAX_IMAGES and inputs.shape[1:] == _GREY):
        return None
    return cnn_gradient(weights.detach(), inputs, labels), weights[:0]


def _of_resnet(
    task: Task, model: nn.Module, weights: Tensor, inputs: Tensor, labels: Tensor, mixed: bool
) -> tuple[Tensor, Tensor] | None:
    found = _resnet_in(model, inputs)
    if found is None:
        return None
    resnet, rest = found
    if not model.training:
        model.train()
    return _unless_refused(
        lambda: resnet_gradient(
            resnet, weights, inputs, lambda outputs: task.loss(rest(outputs), labels), mixed
        )
    )


def _resnet_outputs(model: nn.Module, weights: Tensor, inputs: Tensor) -> Tensor | None:
    known = weights.dtype == inputs.dtype == torch.float32 and len(inputs) <= _SOME_IMAGES
    found = _resnet_in(model, inputs) if known and _trains_wholly(model) else None
    if found is None:
        return None
    resnet, rest = found
    if model.training:
        model.eval()
    outputs = _unless_refused(lambda: resnet_outputs(resnet, weights, inputs))
    return None if outputs is None else rest(outputs)


def _resnet_in(model: nn.Module, inputs: Tensor) -> tuple[ResNet20, nn.Sequential] | None:
    """The ResNet-20 that has kernels for these images, and what becomes of its outputs."""
    parts = [*model] if isinstance(model, nn.Sequential) else []
    resnet, *others = parts or [model]
    rest = nn.Sequential(*others)  # where a task says so
    if type(resnet) is not ResNet20 or type(resnet.norm) is not nn.BatchNorm2d:
        return None
    if [*rest.parameters(), *rest.buffers()] or not _fits(inputs):
        return None
    return None if _refused or not _has_tensor_cores(inputs.device) else (resnet, rest)


def _unless_refused(compute: Callable[[], Found]) -> Found | None:
    try:
        return compute()
    except torch.OutOfMemoryError:
        raise  # and torch's layers would have no more
    except Exception as error:  # of the compiler, which differs from version to version
        _refused.append(error)
        message = f"ResNet-20's kernels do not compile here, torch's layers it is: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None


def _fits(inputs: Tensor) -> bool:
    """Whether these are images, with a deviation to normalise by after they were halved twice."""
    if inputs.dim() != 4 or inputs.shape[1] != 3:
        return False
    count, _, height, width = inputs.shape
    return count * -(-height // 4) * -(-width // 4) > 1 and count * height * width * 16 < _NUMBERS


@functools.cache
def _has_tensor_cores(device: torch.device) -> bool:
    """Whether they know bfloat16 and TF32, as from Ampere on."""
    return torch.cuda.get_device_capability(device) >= (8, 0)
