"""The simulated clients: data and model on the device, one gradient at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from secureafl.core.flat_model import FlatModel, trained_parameters
from secureafl.core.types import Data
from secureafl.kernels.rows import draw_batch
from secureafl.runtime.standardisation import Standardisation
from secureafl.runtime.tape import Taped
from secureafl.tasks.faster import fast_gradient, fast_outputs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.protocols import Task
    from secureafl.experiment import Training

_TEST_BATCH = 1000
_FEW = 2**20  # numbers in the inputs of all training samples: 4 MB
_SMALL = 100_000  # parameters; with more of them the layers' arithmetic is what takes the time

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Clients:
    """Updates and test outputs of flat models."""

    def __init__(self, task: Task, data: Data, model: nn.Module, training: Training) -> None:
        """All tensors must be on one device."""
        self.task, self.data, self.model, self.training = task, data, model, training
        self.standardisation = Standardisation.of(data)
        self._on_gpu = data.pixel_mean.device.type == "cuda"
        # Few CPUs are any good at it: there everything is float32.
        self._mixed = self._on_gpu and training.precision == "bfloat16"
        self._flat = FlatModel(model, mixed=self._mixed)
        self._exact = FlatModel(model)  # a model is judged in float32, however it was trained
        small = sum(value.numel() for value in trained_parameters(model).values()) <= _SMALL
        on_cpu = data.pixel_mean.device.type == "cpu"
        self._by_autograd = Taped(self._track) if on_cpu and small else self._track
        # Few samples are standardised once, the others as they are drawn.
        self._few = on_cpu and data.train_inputs.numel() <= _FEW
        self._inputs = data.train_inputs
        if self._few:
            self._inputs = self.standardisation(data.train_inputs)

    def update(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " samples"],
        poison: Change | None = None,
    ) -> Float[Tensor, " d"]:
        """What a client uploads: (w - w_K) / eta after K steps, each on its part of the rows."""
        return self._descended(
            weights, rows, lambda now, batch, _: self.gradient(now, batch, poison)
        )

    def private_update(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " samples"],
        draw: Int[Tensor, ""],
    ) -> Float[Tensor, " d"]:
        """As `update`, with the training's clipping and noise; each upload has its own `draw`."""
        privacy = self.training.privacy
        if privacy.unit == "upload":
            return privacy.release(self.update(weights, rows)[None], draw)
        first = draw * self.training.local_steps  # each step has noise of its own
        return self._descended(
            weights, rows, lambda now, batch, k: self.private_gradient(now, batch, first + k)
        )

    def _descended(
        self, weights: Tensor, rows: Tensor, gradient: Callable[[Tensor, Tensor, int], Tensor]
    ) -> Tensor:
        if self.training.local_steps == 1:
            return gradient(weights, rows, 0)
        first, *more = rows.chunk(self.training.local_steps)
        total = gradient(weights, first, 0)
        for number, batch in enumerate(more, 1):
            now = weights - self.training.server_rate * total
            total = total + gradient(now, batch, number)
        return total

    def gradient(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " batch"],
        poison: Change | None = None,
    ) -> Float[Tensor, " d"]:
        """Gradient of one batch, changed by `poison` first, on the scale of uploads.

        For a running statistic it is what a step turns into the layer's own update.
        """
        inputs, labels = self.batch(rows)
        if poison:
            inputs, labels = poison(inputs, labels)
        found = fast_gradient(self.task, self.model, weights, inputs, labels, self._mixed)
        gradient, moved = found or self._by_autograd(weights, inputs, labels)
        scale = self.training.upload_scale
        gradient = gradient if scale == 1 else scale * gradient
        if moved.numel():
            gradient[-moved.numel() :] = moved / self.training.server_rate
        return gradient

    def _track(
        self, weights: Tensor, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, Float[Tensor, " statistics"]]:
        with self._repeatable():
            return self._flat.gradient(weights, inputs, lambda out: self.task.loss(out, labels))

    def private_gradient(self, weights: Tensor, rows: Tensor, draw: Tensor) -> Tensor:
        """Mean of the samples' gradients, each cut, with noise."""
        inputs, labels = self.batch(rows)

        def loss(weights: Tensor, one: Tensor, label: Tensor) -> Tensor:
            outputs, _ = self._flat.train(weights, one[None])
            return self.task.loss(outputs, label[None])

        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0), randomness="different")
        with self._repeatable():
            gradients = each(weights.detach(), inputs, labels)
        total = self.training.privacy.release(gradients, draw)
        return total * (self.training.upload_scale / len(rows))

    def batch(self, rows: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """Standardised inputs and labels of these training samples."""
        labels = self.data.train_labels
        if not self._few:
            drawn = draw_batch(self._inputs, labels, rows, *self.standardisation)
            if drawn is not None:
                return drawn
        inputs, labels = (tensor.index_select(0, rows) for tensor in (self._inputs, labels))
        return inputs if self._few else self.standardisation(inputs), labels

    @torch.no_grad()
    def test_outputs(
        self, weights: Float[Tensor, " d"], stamp: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Outputs on the whole test set, its inputs stamped with a trigger first if given."""
        outputs = []
        for inputs in self.data.test_inputs.split(_TEST_BATCH):
            inputs = self.standardisation(inputs)
            inputs = stamp(inputs) if stamp else inputs
            with self._repeatable():
                found = fast_outputs(self.model, weights, inputs)
                outputs.append(self._exact.outputs(weights, inputs) if found is None else found)
        return torch.cat(outputs)

    def _repeatable(self) -> AbstractContextManager[None]:
        """Same bits at every run on a GPU; convolutions in TF32, PyTorch's default, and faster."""
        if not self._on_gpu:
            return nullcontext()
        return torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=True
        )
