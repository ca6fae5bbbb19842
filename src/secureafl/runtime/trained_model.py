"""The model of a finished run: what its file holds, and a module that is ready for use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secureafl.core.errors import ConfigError, DataError, RunError
from secureafl.core.flat_model import named_state
from secureafl.experiment import from_mapping
from secureafl.runs.checksums import require_intact
from secureafl.runs.layout import EXPERIMENT, MODEL, RESULT, read_json, require_run
from secureafl.runtime.standardisation import Standardisation
from secureafl.tasks.arrays import refuse_arrays
from secureafl.toml import read_toml

if TYPE_CHECKING:
    import numpy as np

    from secureafl.runtime.clients import Clients


class ModelFile(NamedTuple):
    """The content of `model.safetensors`."""

    tensors: dict[str, Tensor]  # a state_dict
    dtype: torch.dtype  # of the raw inputs: uint8, float32 or int64
    shape: tuple[int, ...]  # of one raw input
    standardisation: Standardisation


class TrainedModel(nn.Module):
    """A trained module that takes raw inputs, as the data set has them.

    `module` is the network alone, whose inputs are standardised already.

    >>> standardisation = torch.tensor([2.0]), torch.tensor([0.5])
    >>> model = secureafl.TrainedModel(torch.nn.Identity(), torch.float32, *standardisation)
    >>> model(torch.tensor([[1.0], [3.0]]))
    tensor([[-2.],
            [ 2.]])
    """

    module: nn.Module
    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, dtype: torch.dtype, mean: Tensor, std: Tensor) -> None:
        """`dtype` is that of the raw inputs in training: uint8, float32 or int64."""
        super().__init__()
        self.module, self.dtype = module, dtype
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.eval()

    def forward(self, inputs: Any) -> Tensor:
        """Outputs of raw inputs: a tensor, or an array of NumPy's."""
        inputs = inputs if isinstance(inputs, Tensor) else torch.as_tensor(inputs)
        inputs = as_trained(inputs, self.dtype).to(self.mean.device)
        return self.module(Standardisation(self.mean, self.std)(inputs))


def as_trained(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw inputs with the dtype they had in training; raises if they are of another kind."""
    whole = not inputs.is_floating_point() and not inputs.is_complex()
    if inputs.dtype == dtype:
        return inputs
    if dtype == torch.uint8 or inputs.is_complex():
        remedy = "give raw bytes from 0 to 255, dtype uint8, or use the attribute 'module' alone"
        raise DataError(f"inputs are {inputs.dtype}, in training they were {dtype}; {remedy}")
    if dtype == torch.int64 and not whole:
        remedy = "give whole numbers, such as tokens"
        raise DataError(f"inputs are {inputs.dtype}, in training they were {dtype}; {remedy}")
    return inputs.to(dtype)


def model_file(clients: Clients, weights: Tensor) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What a run leaves of its model: named arrays, and what else it takes to use them."""
    inputs, (mean, std) = clients.data.train_inputs, clients.standardisation
    facts = {
        "inputs": str(inputs.dtype).removeprefix("torch."),
        "shape": list(inputs.shape[1:]),
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    state = named_state(clients.model, weights)
    return {name: tensor.cpu().numpy() for name, tensor in state.items()}, facts


def read_model(run: Path) -> ModelFile:
    """The model a finished run left in its folder."""
    path = run / MODEL
    require_run(run)
    if not (run / RESULT).is_file():
        raise RunError(f"{run}: unfinished, so it has no model yet; 'secureafl resume' goes on")
    require_intact(run, read_json(run / RESULT), MODEL)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["secureafl"])
        tensors = safetensors.torch.load_file(path)
        given = Standardisation(*(torch.tensor(facts[key]) for key in ("mean", "std")))
        dtype, shape = getattr(torch, facts["inputs"]), tuple(map(int, facts["shape"]))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RunError(f"{path}: no model, or of an earlier version ({why})") from error
    return ModelFile(tensors, dtype, shape, given)


def load_model(run: Path | str, module: nn.Module | None = None) -> TrainedModel:
    """The trained model of a run, ready for use: raw inputs in, outputs out.

    The network is made by the run's task, or `module` is taken, which gets the trained weights;
    that of `secureafl.fit` has to be given, for a run folder holds no code.

    >>> import tempfile
    >>> samples = torch.rand(20, 4), torch.arange(20) % 2
    >>> network = torch.nn.Linear(4, 2)
    >>> out = tempfile.mkdtemp() + "/run"
    >>> result = secureafl.fit(network, samples, clients=2, rounds=4, out=out)
    >>> model = secureafl.load_model(out, network)
    >>> model(samples[0]).shape
    torch.Size([20, 2])
    """
    run = Path(run)
    found = read_model(run)
    network = _network(run) if module is None else module
    _fill(network, found.tensors, run)
    return TrainedModel(network, found.dtype, *found.standardisation)


def _network(run: Path) -> nn.Module:
    stored = read_toml(run / EXPERIMENT)
    refuse_arrays(stored, run, "load_model(RUN, module) takes the module that was trained")
    task = from_mapping({"task": stored["task"]}).task
    with torch.random.fork_rng(devices=[]):
        return task.model()


def _fill(network: nn.Module, tensors: Mapping[str, Tensor], run: Path) -> None:
    """Put the trained tensors into a network that has places of these names and shapes."""
    state = network.state_dict()
    places = {name: tuple(v.shape) for name, v in state.items() if isinstance(v, Tensor)}
    trained = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in sorted({*places, *trained}):
        if places.get(name) != trained.get(name):
            now, then = places.get(name, "absent"), trained.get(name, "absent")
            what = f"{name!r} is {now} in the network and {then} in the run"
            raise ConfigError(f"{run}: {what}; give the module that was trained")
    network.load_state_dict({**state, **tensors})
