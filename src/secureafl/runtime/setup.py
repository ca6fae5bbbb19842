"""What an experiment fixes before its first round: the model's weights and who holds which data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from secureafl.core.errors import ConfigError
from secureafl.core.flat_model import count_statistics
from secureafl.core.random import numpy_generator, torch_generator
from secureafl.core.schedule import Schedule
from secureafl.core.server import Server
from secureafl.optimizers import Sgd
from secureafl.partitions.shards import Shards, checked
from secureafl.runtime.model_checks import require_trainable

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.types import Data, RootData
    from secureafl.experiment import Experiment


def seeded_model(experiment: Experiment, device: torch.device) -> torch.nn.Module:
    """The model before the first round."""
    # Modules draw their first weights from torch's global generator; it is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        cpu = torch.device("cpu")
        torch.manual_seed(torch_generator(experiment.seed, "model", 0, cpu).initial_seed())
        model = experiment.task.model()
    if any(map(is_lazy, [*model.parameters(), *model.buffers()])):
        raise ConfigError("model: it has lazy layers; call it on a batch before it is returned")
    require_trainable(model)
    return model.to(device)


def make_server(
    experiment: Experiment,
    model: torch.nn.Module,
    root_data: RootData | None,
    samples: Float[torch.Tensor, " n"] | None = None,
    seed: int | None = None,
) -> Server:
    """The server of an experiment; `core.server.Server` says what the arguments are."""
    rate, schedule = experiment.scheduled_training.server_rate, experiment.server_schedule
    server = Server(experiment.defense, experiment.clients, rate, root_data, samples, seed)
    if experiment.server_optimizer == Sgd() and schedule == Schedule():
        return server
    return server._replace(
        optimizer=experiment.server_optimizer,
        schedule=None if schedule == Schedule() else schedule.over(experiment.rounds),
        statistics=count_statistics(model),
    )


def deal_samples(experiment: Experiment, data: Data) -> Shards:
    """The training samples of each client, and the group it belongs to."""
    rng = numpy_generator(experiment.seed, "partition")
    labels, origin = data.train_labels.numpy(), data.train_origin
    origin = None if origin is None else origin.numpy()
    dealt = experiment.partition.deal(labels, experiment.clients, rng, origin)
    return checked(dealt, len(labels), experiment.clients)


def count_labels(data: Data, shards: Shards) -> list[list[int]] | None:
    """How many samples of each class every client holds; None for a regression."""
    if data.train_labels.is_floating_point():
        return None
    labels = data.train_labels.numpy()
    classes = int(labels.max()) + 1
    return [np.bincount(labels[rows], minlength=classes).tolist() for rows in shards.rows]
