"""Models as flat vectors: a model is flattened once, at the edge; defences see nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from jaxtyping import Float

_VARIANCE = "running_var"


def layout(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """What lies in the model's flat vector, in this order: shapes by name.

    First the parameters, then the running statistics of batch normalisation: they are part of
    what is learnt, so they travel in the same vector, and a defence sees them.
    """
    return {name: tuple(value.shape) for name, value in _learnt(model).items()}


def flatten(model: nn.Module) -> Float[Tensor, " d"]:
    """The model's parameters and statistics, in their order, as one new vector.

    >>> secureafl.flatten(torch.nn.Linear(4, 3)).shape
    torch.Size([15])
    """
    return torch.cat([value.detach().reshape(-1) for value in _learnt(model).values()])


def call_flat(model: nn.Module, weights: Float[Tensor, " d"], inputs: Tensor) -> Tensor:
    """Outputs of `model` as it is used after training, with all it learnt in a flat vector.

    >>> model = torch.nn.Linear(4, 3)
    >>> inputs = torch.rand(2, 4)
    >>> torch.equal(secureafl.call_flat(model, secureafl.flatten(model), inputs), model(inputs))
    True
    """
    named = _trained(model, weights)
    return functional_call(_in_mode(model, training=False), named, (inputs,))


def named_state(model: nn.Module, weights: Float[Tensor, " d"]) -> dict[str, Tensor]:
    """The `state_dict` of `model` as it is used after training, with all it learnt in a vector."""
    learnt, found = _learnt(model), _trained(model, weights)
    # By identity: a tensor that two layers share has two names there.
    trained = {id(learnt[name]): value.to(learnt[name].dtype) for name, value in found.items()}
    state = model.state_dict(keep_vars=True)
    return {
        name: trained.get(id(value), value).detach()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


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
        for key in ("running_mean", _VARIANCE)
    }


def _trained(model: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """The pieces of a flat vector by name, such that the model can be evaluated with them."""
    named = _named(_learnt(model), weights)
    for name in _statistics(model):
        # Whatever a poisoned step made of a variance, its root must exist.
        named[name] = named[name].clamp(min=0) if name.endswith(_VARIANCE) else named[name]
    return named


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
