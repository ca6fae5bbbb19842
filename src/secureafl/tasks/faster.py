"""Gradients of known networks by hand-written kernels, where autograd is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.kernels.dispatch import on_gpu
from secureafl.kernels.gpu_cnn import MOST_IMAGES, cnn_gradient
from secureafl.tasks.classification import Classification
from secureafl.tasks.models.cnn import PaperCnn

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secureafl.core.protocols import Task


def fast_gradient(
    task: Task, model: nn.Module, weights: Tensor, inputs: Tensor, labels: Tensor
) -> Tensor | None:
    """Return the gradient of a batch's loss at flat weights, or None if autograd is needed."""
    known = type(model) is PaperCnn and getattr(type(task), "loss", None) is Classification.loss
    if not (known and weights.dtype == inputs.dtype == torch.float32 and on_gpu(weights)):
        return None
    fits = len(inputs) <= MOST_IMAGES and inputs.shape[1:] == (1, 28, 28)
    return cnn_gradient(weights.detach(), inputs, labels) if fits else None
