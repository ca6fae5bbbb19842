"""Fit a module of one's own to samples of one's own, with clients, attackers and a defence."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from secureafl.core.contents import checksum
from secureafl.core.errors import ConfigError, DataError
from secureafl.core.protocols import Partition
from secureafl.core.random import numpy_generator
from secureafl.core.types import Data
from secureafl.experiment import Experiment, Training, from_mapping
from secureafl.library.results import RunResult
from secureafl.library.running import Kind, free_folder, run_into, run_name
from secureafl.library.trial import prepare
from secureafl.partitions import PARTITIONS, ByRecording
from secureafl.runtime.loss_checks import first_line
from secureafl.runtime.model_checks import require_trainable
from secureafl.settings import did_you_mean, short_name
from secureafl.tasks.arrays import Arrays, Given, root_squared_error, squared_error
from secureafl.tasks.classification import Classification
from secureafl.tasks.in_memory import from_tensors
from secureafl.tasks.samples import Samples, read_samples
from secureafl.tracking.callback import Callback

_RATES = {"learning_rate": 0.05, "batch_size": 32}  # unless told
_HELD_OUT = 0.2  # of the samples, where no others are given for the test
_TESTS = ("test", "validation", "valid")  # what the other part of a data set in parts is called

Loss = Callable[[Tensor, Tensor], Tensor]
Metrics = Callable[[Tensor, Tensor], Mapping[str, float]]


def fit(
    model: nn.Module,
    data: Any,
    test: Any = None,
    *,
    clients: int = 10,
    rounds: int = 1000,
    attack: Kind = "none",
    malicious: int | float = 0.2,
    defense: Kind | None = None,
    partition: Kind = "iid",
    learning_rate: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    columns: tuple[str, str] | None = None,
    origin: Any = None,
    standardise: bool = True,
    out: Path | str | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> RunResult:
    """Train a module on samples that are dealt to clients, some of them malicious.

    It is the simulation that `run` runs, of a task made from what is given. The module itself is
    not changed: `result.model` is a trained copy that takes raw inputs.

    Args:
        model: A module with its initial weights; its parameters are float32, frozen ones stay.
        data: Training samples: `(inputs, labels)` of arrays or tensors, a map-style data set of
            such pairs, a dict of columns, a data frame, a Hugging Face data set; or a dict with
            the parts `train` and `test`. Whole labels are classes, real ones make a regression.
        test: Test samples in any of these forms; without them, a fifth of `data` is held out.
        clients: How many there are.
        rounds: Uploads; each is the gradient of one batch.
        attack: What malicious clients do: a name, a table of settings, or the object.
        malicious: A share or a number of the clients; none without an attack.
        defense: What the server does; the default rule unless told.
        partition: How the samples are dealt to clients.
        learning_rate: Of the server's steps; 0.05, unless here or in `training`.
        batch_size: Samples for an upload; 32, unless here or in `training`.
        seed: Everything random follows from it, but for the weights, which are the module's.
        loss: Of a batch, from outputs and labels; else cross entropy or the squared error.
        metrics: By name, from outputs and labels of the test; else the error rate or the RMSE. The
            first is an error, lower is better: attacks and tables go by it.
        columns: Of a table, the names of the inputs and of the labels.
        origin: Of each training sample, whose it is, for `partition="by_recording"` or one of
            your own.
        standardise: Whether inputs are centred and scaled by channel, their second axis; for a
            pretrained module they may have to stay as they are. Bytes are then divided by 255.
        out: The run folder; the same call with it goes on after a stop.
        progress: Whether to show how far it is.
        callbacks: Told what happens in the run, such as `secureafl.tracking.TensorBoard()`.
        settings: Any other setting of an `Experiment`, such as `evaluation={"every": 100}`.

    >>> import tempfile
    >>> inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    >>> labels = (inputs.sum(dim=1) > 0).long()
    >>> result = secureafl.fit(
    ...     torch.nn.Linear(4, 2), (inputs, labels), clients=5, rounds=200, attack="sign_flip",
    ...     out=tempfile.mkdtemp() + "/run",
    ... )
    >>> result.metrics["ter"] < 0.3
    True
    >>> result.model(inputs[:3].numpy()).shape
    torch.Size([3, 2])
    """
    named = {"clients": clients, "rounds": rounds, "malicious": malicious, "seed": seed}
    named |= {"attack": attack, "partition": partition}
    named |= {} if defense is None else {"defense": defense}
    rates = {"learning_rate": learning_rate, "batch_size": batch_size}
    experiment = _experiment(named, rates, settings)  # before anything large is read
    _refuse_unused(origin, experiment.partition)
    module = _checked(model)
    train, held = _parts(data, test, columns, experiment.seed, origin)
    train, held = prepare(module, train, held)
    found = _data(train, held, origin, standardise, test is None and not _in_parts(data))
    task = _task(module, found, loss, metrics, standardise)
    experiment = dataclasses.replace(experiment, task=task)
    path = Path(out) if out is not None else free_folder(Path("runs"), run_name(experiment))
    run_into(experiment, path, progress, 60.0, callbacks)
    return RunResult(path, copy.deepcopy(module))


def _checked(model: Any) -> nn.Module:
    """A copy of the module on the CPU, if it can be trained here."""
    if isinstance(model, type):
        raise ConfigError(f"model = {model.__name__}: that is the class; give {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: of type {type(model).__name__}; give a torch.nn.Module")
    require_trainable(model)
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:  # lazy layers with buffers, or whatever else a module holds
        remedy = "call a lazy module once, or give one that copy.deepcopy takes"
        raise ConfigError(f"model: cannot be copied ({first_line(error)}); {remedy}") from error


def _in_parts(data: Any) -> bool:
    return isinstance(data, Mapping) and "train" in data and any(name in data for name in _TESTS)


def _parts(
    data: Any, test: Any, columns: tuple[str, str] | None, seed: int, origin: Any
) -> tuple[Samples, Samples]:
    """Training and test samples."""
    if _in_parts(data):
        test = data[next(name for name in _TESTS if name in data)] if test is None else test
        data = data["train"]
    train = read_samples(data, "data", columns)
    if test is not None:
        return train, read_samples(test, "test", columns)
    count = len(train[0])
    if origin is not None or count == 1:
        why = "a part cannot be held out of " + ("recordings" if count > 1 else "1 sample")
        raise DataError(f"test: {why}; give test=(inputs, labels)")
    order = torch.from_numpy(numpy_generator(seed, "held_out").permutation(count))
    last = math.ceil(_HELD_OUT * count)
    inputs, labels = train
    return (
        (inputs[order[last:]], labels[order[last:]]),
        (inputs[order[:last]], labels[order[:last]]),
    )


def _data(train: Samples, test: Samples, origin: Any, standardise: bool, held_out: bool) -> Data:
    source = "arrays, a fifth held out" if held_out else "arrays"
    data = from_tensors(train, test, source, _recordings(origin, len(train[0])))
    if standardise:
        return data
    mean, std = torch.zeros_like(data.pixel_mean), torch.ones_like(data.pixel_std)
    return data._replace(pixel_mean=mean, pixel_std=std)


def _refuse_unused(origin: Any, partition: Partition) -> None:
    """Raise for an origin that a partition of the package pays no regard to; one's own may."""
    unused = type(partition) in PARTITIONS.values() and not isinstance(partition, ByRecording)
    if origin is not None and unused:
        told = f"the partition {short_name(partition)!r} does not look at it"
        raise ConfigError(f"origin: {told}; give partition='by_recording', or leave origin out")


def _recordings(origin: Any, samples: int) -> Tensor | None:
    """Whose each sample is, numbered: names will do."""
    if origin is None:
        return None
    shape = np.shape(origin)
    if shape != (samples,):
        raise DataError(f"origin: {shape} for {samples} training samples; give one for each")
    try:
        return torch.from_numpy(np.unique(np.asarray(origin), return_inverse=True)[1])
    except TypeError as error:  # a name and None, say, cannot be sorted
        raise DataError(f"origin: {error}; give names, or numbers, for all samples") from None


def _task(
    module: nn.Module,
    data: Data,
    loss: Loss | None,
    metrics: Metrics | None,
    standardise: bool,
) -> Arrays:
    usual = (cross_entropy, Classification().metrics)
    if data.train_labels.is_floating_point():
        usual = (squared_error, root_squared_error)
    own = (loss if loss is not None else usual[0], metrics if metrics is not None else usual[1])
    given = Given(module, data, *own)
    _refuse_learning(given.loss)
    return Arrays(
        type(module).__name__,
        weights_checksum=checksum(module.state_dict()),
        samples_checksum=data.fingerprint,
        module_checksum=checksum(module),
        loss_checksum=checksum(given.loss),
        metrics_checksum=checksum(given.metrics),
        loss_name=getattr(given.loss, "__name__", type(given.loss).__name__),
        standardised=standardise,
        given=given,
    )


def _refuse_learning(loss: Loss) -> None:
    """Raise if the loss has weights of its own: only those of the model are trained."""
    weights = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    name = next((name for name, value in weights if value.requires_grad), None)
    if name:
        remedy = "put it into the model, or freeze it"
        raise ConfigError(f"loss: its parameter {name!r} would not be trained; {remedy}")


def _experiment(
    named: dict[str, Any], rates: dict[str, Any], settings: dict[str, Any]
) -> Experiment:
    """The experiment but for its task, of plain settings and of objects."""
    if "task" in settings:
        raise ConfigError("task: fit makes it of the module and the samples; leave it out")
    fields = (field.name for field in dataclasses.fields(Experiment))
    known = list(dict.fromkeys([*inspect.signature(fit).parameters, *fields]))
    for name in settings:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, known)}")
    training = _training(settings.pop("training", {}), rates)
    given = {**named, **settings, "training": training}
    objects = {key: v for key, v in given.items() if dataclasses.is_dataclass(v)}
    plain = {key: v for key, v in given.items() if key not in objects}
    return dataclasses.replace(from_mapping(plain), **objects)


def _training(given: Any, rates: dict[str, Any]) -> Any:
    """The settings of training, with what `fit` takes by itself; nothing may be told twice."""
    rates = {name: value for name, value in rates.items() if value is not None}
    for name, value in rates.items():
        if isinstance(given, Training) or (isinstance(given, Mapping) and name in given):
            raise ConfigError(f"{name} = {value!r}: training says it too; give it there alone")
    return {**_RATES, **rates, **given} if isinstance(given, Mapping) else given
