"""Flat vectors: models are flattened once, at the edge; defences see nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def layout(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """What lies in the model's flat vector, in this order: shapes by name.

    First the parameters, then the running statistics of batch normalisation: they are part of
    what is learnt, so they travel in the same vector, and a defence sees them.
    """
    return {name: tuple(value.shape) for name, value in _learnt(model).items()}


def flatten(model: nn.Module) -> Float[Tensor, " d"]:
    """The model's parameters and statistics, in their order, as one new vector."""
    return torch.cat([value.detach().reshape(-1) for value in _learnt(model).values()])


def call_flat(model: nn.Module, weights: Float[Tensor, " d"], inputs: Tensor) -> Tensor:
    """Outputs of `model` as it is used after training, with all it learnt in a flat vector."""
    named = _named(_learnt(model), weights)
    for name in _statistics(model):
        # Whatever a poisoned step made of a variance, its root must exist.
        named[name] = named[name].clamp(min=0) if name.endswith(_VARIANCE) else named[name]
    return functional_call(_in_mode(model, training=False), named, (inputs,))


def train_flat(
    model: nn.Module, weights: Float[Tensor, " d"], inputs: Tensor
) -> tuple[Tensor, Float[Tensor, " statistics"]]:
    """Outputs of `model` while it trains, and how far this batch moves its statistics down."""
    statistics = _statistics(model)
    if not statistics:
        named = _named(dict(model.named_parameters()), weights)
        return functional_call(_in_mode(model, training=True), named, (inputs,)), weights[:0]
    last = sum(value.numel() for value in statistics.values())
    before = weights[-last:].detach()
    after = before.clone()  # layers write to it
    named = _named(dict(model.named_parameters()), weights[:-last]) | _named(statistics, after)
    outputs = functional_call(
        _in_mode(model, training=True), {**named, **_spare_counters(model)}, (inputs,)
    )
    return outputs, before - after


_VARIANCE = "running_var"


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
        for key in ("running_mean", _VARIANCE)
    }


def _spare_counters(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the layers' counters of batches to count in, which those with a momentum ignore."""
    return {
        f"{start}num_batches_tracked": layer.num_batches_tracked.clone()  # pyrefly: ignore
        for start, layer in _batch_norms(model).items()
        if layer.momentum is not None and layer.num_batches_tracked is not None
    }


def _learnt(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **_statistics(model)}


def _named(like: dict[str, Tensor], vector: Tensor) -> dict[str, Tensor]:
    """The pieces of a flat vector that holds such tensors one after the other."""
    pieces = vector.split([value.numel() for value in like.values()])
    return {n: v.view_as(old) for (n, old), v in zip(like.items(), pieces, strict=True)}


def _in_mode(model: nn.Module, training: bool) -> nn.Module:
    return model if model.training == training else model.train(training)


def mixes_samples(model: nn.Module) -> bool:
    """Whether what the model says to a sample in training depends on the rest of the batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def row(matrix: Tensor, index: Int[Tensor, ""]) -> Tensor:
    """Copy of `matrix[index]` that does not read `index` back to the host."""
    return matrix.index_select(0, index.view(1)).squeeze(0)


def set_row(matrix: Tensor, index: Int[Tensor, ""], value: Tensor, keep: Bool[Tensor, ""]) -> None:
    """`matrix[index] = value` in place where `keep` holds, without a host read."""
    matrix.index_copy_(0, index.view(1), torch.where(keep, value, row(matrix, index))[None])


def norm(vector: Tensor) -> Float[Tensor, " ..."]:
    """Euclidean norm over the last axis; exact enough for a bound, infinite if it overflows."""
    return torch.linalg.vector_norm(vector, dim=-1)


def exact_norm(vector: Tensor) -> Float[Tensor, " ..."]:
    """Euclidean norm over the last axis, in float64: squares of large float32 overflow."""
    return torch.linalg.vector_norm(vector, dim=-1, dtype=torch.float64)


def scaled(vector: Tensor, scale: Float[Tensor, ""]) -> Tensor:
    """The vector times a number; on a CPU not a copy if that is 1."""
    # Reading a number costs nothing there, a pass over memory does.
    if scale.device.type == "cpu" and scale == 1:
        return vector
    return vector * scale  # a single number does not change the dtype


def choose(flag: Bool[Tensor, ""], one: Tensor, other: Tensor) -> Tensor:
    """`torch.where` of a single flag; on a CPU not a copy."""
    if flag.device.type == "cpu":
        return one if flag else other
    return torch.where(flag, one, other)


def zero_unless(flag: Bool[Tensor, ""], vector: Tensor) -> Tensor:
    """The vector, or zeros where the flag does not hold; on a CPU not a copy."""
    if flag.device.type == "cpu":
        return vector if flag else torch.zeros_like(vector)
    return torch.where(flag, vector, 0)


def exactly_scaled(vector: Float[Tensor, " d"], factor: Float[Tensor, ""]) -> Float[Tensor, " d"]:
    """`factor * vector`, multiplied in float64: the factor alone may not fit the vector's dtype."""
    return (vector.double() * factor).to(vector.dtype)


def clipped(vector: Float[Tensor, " d"], radius: Float[Tensor, ""]) -> Float[Tensor, " d"]:
    """The vector, shortened to norm `radius` if it is longer."""
    length = exact_norm(vector)
    return exactly_scaled(vector, torch.where(length > radius, radius / length, 1.0))


def cosine(one: Float[Tensor, " d"], other: Float[Tensor, " d"]) -> Float[Tensor, ""]:
    """Cosine of the angle between two vectors, in float64; 0 if one of them is zero."""
    lengths = exact_norm(one) * exact_norm(other)
    return torch.where(lengths > 0, one.double() @ other.double() / lengths, 0.0)


def computed_if(
    wanted: Bool[Tensor, ""], compute: Callable[[], Tensor], otherwise: Tensor
) -> Tensor:
    """`compute()` where `wanted` holds, else `otherwise`.

    A step recorded on a GPU cannot branch, so there both are made and one is chosen; on the CPU
    nothing is computed in vain.
    """
    if wanted.device.type == "cpu":
        return compute() if wanted else otherwise
    return torch.where(wanted, compute(), otherwise)
