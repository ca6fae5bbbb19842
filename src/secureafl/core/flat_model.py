"""Models as flat vectors: a model is flattened once, at the edge; defences see nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from jaxtyping import Float


def layout(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """What lies in the model's flat vector, in this order: shapes by name.

    First the parameters that train, then the running statistics of batch normalisation: they are
    part of what is learnt, so they travel in the same vector, and a defence sees them. Frozen
    parameters stay in the module.
    """
    learnt = {**trained_parameters(model), **_statistics(model)}
    return {name: tuple(value.shape) for name, value in learnt.items()}


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters that are not frozen, by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def count_statistics(model: nn.Module) -> int:
    """How many of the flat vector's last numbers are running statistics."""
    return sum(value.numel() for value in _statistics(model).values())


def flatten(model: nn.Module) -> Float[Tensor, " d"]:
    """The model's trained parameters and statistics, in their order, as one new vector.

    >>> secureafl.flatten(torch.nn.Linear(4, 3)).shape
    torch.Size([15])
    """
    learnt = [*trained_parameters(model).values(), *_statistics(model).values()]
    return torch.cat([value.detach().reshape(-1) for value in learnt])


def call_flat(model: nn.Module, weights: Float[Tensor, " d"], inputs: Tensor) -> Tensor:
    """Outputs of `model` as it is used after training, with all it learnt in a flat vector.

    >>> model = torch.nn.Linear(4, 3)
    >>> inputs = torch.rand(2, 4)
    >>> torch.equal(secureafl.call_flat(model, secureafl.flatten(model), inputs), model(inputs))
    True
    """
    return FlatModel(model).outputs(weights, inputs)


def named_state(model: nn.Module, weights: Float[Tensor, " d"]) -> dict[str, Tensor]:
    """The `state_dict` of `model` as it is used after training, with all it learnt in a vector."""
    learnt = [*trained_parameters(model).values(), *_statistics(model).values()]
    pieces = FlatModel(model).trained(weights)
    # By identity: a tensor that two layers share has two names there.
    trained = {id(old): piece.to(old.dtype) for old, piece in zip(learnt, pieces, strict=True)}
    state = model.state_dict(keep_vars=True)
    return {
        name: trained.get(id(value), value).detach()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


class FlatModel:
    """A model that takes all it learns from flat vectors; its own tensors stay as they are.

    As `torch.func.functional_call`, but the layers are looked through once and not at every call,
    which takes longer than the layers of a small model do.
    """

    def __init__(self, model: nn.Module, mixed: bool = False) -> None:
        """The model's layers must stay the same objects from now on.

        `mixed` is mixed precision: layers compute in bfloat16 where PyTorch finds that safe.
        """
        self.model, self._mixed = model, mixed
        parameters = [*trained_parameters(model).values()]
        statistics = [*_statistics(model).values()]
        learnt, self._count = [*parameters, *statistics], len(parameters)
        self._shapes = [tuple(value.shape) for value in learnt]
        self._sizes = [value.numel() for value in learnt]
        self._last = sum(value.numel() for value in statistics)
        # Layers with a momentum count their batches but ignore the number: here they may count.
        counters = _counters(model)
        self._spare = [counter.clone() for counter in counters]
        self._places = _places(model, [*learnt, *counters])

    def outputs(self, weights: Float[Tensor, " d"], inputs: Tensor) -> Tensor:
        """What the model says after training."""
        with self._placed(self.trained(weights), training=False):
            return self._answer(inputs)

    def trained(self, weights: Float[Tensor, " d"]) -> list[Tensor]:
        """The pieces of a flat vector, such that the model can be evaluated with them."""
        pieces = self._pieces(weights)
        # Whatever a poisoned step made of a variance, its root must exist; each follows a mean.
        for number in range(self._count + 1, len(pieces), 2):
            pieces[number] = pieces[number].clamp(min=0)
        return pieces

    def train(
        self, weights: Float[Tensor, " d"], inputs: Tensor
    ) -> tuple[Tensor, Float[Tensor, " statistics"]]:
        """What the model says while it trains, and how far this batch moves its statistics down."""
        pieces, statistics = self._writable(self._pieces(weights), weights)
        with self._placed(pieces, training=True):
            outputs = self._answer(inputs)
        return outputs, self._moved(weights, statistics)

    def gradient(
        self, weights: Float[Tensor, " d"], inputs: Tensor, loss: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " statistics"]]:
        """Gradient of the loss of the outputs, 0 for statistics, and how far these move down."""
        weights = weights.detach()
        pieces = self._pieces(weights)
        # Each is a leaf of its own: the way back to the vector they are views of takes longer.
        leaves = [piece.requires_grad_() for piece in pieces[: self._count]]
        pieces, statistics = self._writable(pieces, weights)
        # Until the way back is gone: checkpointed layers are carried out once more on it.
        with self._placed(pieces, training=True):
            outputs = self._answer(inputs)
            moved = self._moved(weights, statistics)
            found = torch.autograd.grad(loss(outputs), leaves, allow_unused=True)
        parts = [
            (torch.zeros_like(leaf) if part is None else part).reshape(-1)
            for part, leaf in zip(found, leaves, strict=True)
        ]
        return torch.cat([*parts, torch.zeros_like(moved)] if self._last else parts), moved

    def _writable(self, pieces: list[Tensor], weights: Tensor) -> tuple[list[Tensor], Tensor]:
        """The pieces with statistics that layers may write to, and these in one vector."""
        if not self._last:
            return pieces, weights[:0]
        statistics = weights[-self._last :].detach().clone()
        views = _views(statistics, self._sizes[self._count :], self._shapes[self._count :])
        return [*pieces[: self._count], *views, *self._spare], statistics

    def _moved(self, weights: Tensor, statistics: Tensor) -> Tensor:
        """How far down statistics went from where they are in the weights."""
        return weights[-self._last :].detach() - statistics if self._last else statistics

    def _pieces(self, weights: Tensor) -> list[Tensor]:
        return _views(weights, self._sizes, self._shapes)

    @contextlib.contextmanager
    def _placed(self, pieces: list[Tensor], training: bool) -> Iterator[None]:
        """The model with these pieces for its own tensors."""
        model = self.model
        if model.training != training:
            model.train(training)
        own = [tensors[name] for tensors, name, _ in self._places]
        try:
            for tensors, name, number in self._places:
                if number < len(pieces):
                    tensors[name] = pieces[number]
            yield
        finally:
            for (tensors, name, _), tensor in zip(self._places, own, strict=True):
                tensors[name] = tensor

    def _answer(self, inputs: Tensor) -> Tensor:
        return self._mixed_outputs(inputs) if self._mixed else self.model(inputs)

    def _mixed_outputs(self, inputs: Tensor) -> Tensor:
        # Without its cache, which a recorded graph could not fill again.
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            return self.model(inputs).float()


def mixes_samples(model: nn.Module) -> bool:
    """Whether what the model says to a sample in training depends on the rest of the batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers with running statistics, by what the names of their tensors begin with."""
    return {
        f"{name}." if name else "": module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{start}{key}": getattr(layer, key)
        for start, layer in _batch_norms(model).items()
        for key in ("running_mean", "running_var")
    }


def _counters(model: nn.Module) -> list[Tensor]:
    """The numbers of batches that layers count and, as they have a momentum, ignore."""
    return [
        layer.num_batches_tracked
        for layer in _batch_norms(model).values()
        if layer.momentum is not None and layer.num_batches_tracked is not None
    ]


def _places(model: nn.Module, tensors: Iterable[Tensor]) -> list[tuple[dict[str, Any], str, int]]:
    """Where the model's layers hold these tensors, each with its number; some in several places."""
    number = {id(tensor): k for k, tensor in enumerate(tensors)}
    return [
        (held, name, number[id(tensor)])
        for layer in model.modules()
        for held in (layer._parameters, layer._buffers)
        for name, tensor in held.items()
        if id(tensor) in number
    ]


def _views(vector: Tensor, sizes: Iterable[int], shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
    """The pieces of a flat vector that holds tensors of these shapes one after the other."""
    pieces = vector.split_with_sizes([*sizes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
