"""The trained model of a run as a file for other programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secureafl.core.errors import ConfigError, RunError
from secureafl.runtime.trained_model import load_model, read_model

_EXAMPLES = 2  # samples to trace a model with; a batch may have any number


def export_model(run: Path | str, to: Path | str, module: nn.Module | None = None) -> Path:
    """Write the trained model of a run to a file, of the format that its name ends with.

    `.pt` is a dict for `torch.load`, with the `state_dict` and how inputs are standardised; `.pt2`
    a program of `torch.export` and `.onnx` one of ONNX, which take raw inputs and need no Python
    code of yours. `module` is as in `load_model`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> samples = torch.rand(20, 4), torch.arange(20) % 2
    >>> network = torch.nn.Linear(4, 2)
    >>> result = secureafl.fit(network, samples, clients=2, rounds=4, out=folder + "/run")
    >>> path = secureafl.export_model(result.path, folder + "/model.pt")
    >>> sorted(torch.load(path))
    ['inputs', 'mean', 'state_dict', 'std']
    """
    run, to = Path(run), Path(to)
    write = _FORMATS.get(to.suffix)
    if write is None:
        raise ConfigError(f"{to}: unknown format; end its name with one of {', '.join(_FORMATS)}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        write(run, to, module)
    except OSError as error:
        raise RunError(f"{to}: cannot be written ({error.strerror or error})") from error
    return to


def _write_state(run: Path, to: Path, module: nn.Module | None) -> None:
    found = read_model(run)
    mean, std = found.standardisation
    torch.save({"state_dict": found.tensors, "inputs": found.dtype, "mean": mean, "std": std}, to)


def _write_program(run: Path, to: Path, module: nn.Module | None) -> None:
    torch.export.save(_program(run, module), to)


def _write_onnx(run: Path, to: Path, module: nn.Module | None) -> None:
    try:
        importlib.import_module("onnxscript")  # torch wants it
    except ImportError:
        raise ConfigError(f"{to}: .onnx needs onnxscript: pip install 'secureafl[onnx]'") from None
    found = torch.onnx.export(_program(run, module), dynamo=True, verbose=False)
    assert found is not None  # what a dynamo export gives
    found.save(str(to))


def _program(run: Path, module: nn.Module | None) -> Any:
    """The model with its standardisation, traced; the size of a batch is left open."""
    model, found = load_model(run, module), read_model(run)
    inputs = torch.zeros(_EXAMPLES, *found.shape, dtype=found.dtype)
    batch = torch.export.Dim("batch")
    try:
        return torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},))
    except Exception as error:  # whatever torch says of a module that it cannot trace
        why = " ".join(str(error).split())[:120]
        raise RunError(f"{run}: torch.export cannot trace its model ({why}); use .pt") from error


_FORMATS: dict[str, Callable[[Path, Path, nn.Module | None], None]] = {
    ".pt": _write_state,
    ".pt2": _write_program,
    ".onnx": _write_onnx,
}
