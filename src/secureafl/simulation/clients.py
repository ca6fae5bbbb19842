"""The simulated clients: data and model on the device, one gradient at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from secureafl.core.types import Data
from secureafl.core.vectors import call_flat

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.protocols import Task

_TEST_BATCH = 1000

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Clients:
    """Gradients and test outputs of flat models."""

    def __init__(self, task: Task, data: Data, model: nn.Module, scale: float = 1) -> None:
        """Everything given lies on one device; uploads are `scale` times a mean gradient."""
        self.task, self.data, self.model, self.scale = task, data, model, scale

    def gradient(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " batch"],
        poison: Change | None = None,
    ) -> Float[Tensor, " d"]:
        """Gradient of one batch, changed by `poison` first, on the scale of uploads."""
        inputs = self._standardised(self.data.train_inputs.index_select(0, rows))
        labels = self.data.train_labels.index_select(0, rows)
        if poison:
            inputs, labels = poison(inputs, labels)
        weights = weights.detach().requires_grad_()
        with _repeatable():
            loss = self.task.loss(call_flat(self.model, weights, inputs), labels)
            gradient = torch.autograd.grad(loss, weights)[0]
        return gradient if self.scale == 1 else self.scale * gradient

    @torch.no_grad()
    def test_outputs(
        self, weights: Float[Tensor, " d"], stamp: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Outputs on the whole test set, its inputs stamped with a trigger first if given."""
        outputs = []
        for inputs in self.data.test_inputs.split(_TEST_BATCH):
            inputs = self._standardised(inputs)
            with _repeatable():
                outputs.append(call_flat(self.model, weights, stamp(inputs) if stamp else inputs))
        return torch.cat(outputs)

    def _standardised(self, inputs: Tensor) -> Tensor:
        mean, std = (x[:, None, None] for x in (self.data.pixel_mean, self.data.pixel_std))
        inputs = (inputs.float() / 255 - mean) / std
        # On CPUs convolutions run a third faster with the channels innermost.
        images_on_cpu = inputs.dim() == 4 and inputs.device.type == "cpu"
        return inputs.to(memory_format=torch.channels_last) if images_on_cpu else inputs


def _repeatable() -> AbstractContextManager[None]:
    """Same bits at every run on a GPU, and full float32 in convolutions."""
    return torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )


def on_device(data: Data, device: torch.device) -> Data:
    """The data set with its tensors moved."""
    return data._replace(
        train_inputs=data.train_inputs.to(device),
        train_labels=data.train_labels.to(device),
        test_inputs=data.test_inputs.to(device),
        test_labels=data.test_labels.to(device),
        pixel_mean=data.pixel_mean.to(device),
        pixel_std=data.pixel_std.to(device),
    )
