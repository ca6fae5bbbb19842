"""What a client does with a model it was sent: the training of the simulator, on its own data."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from secureafl.core.errors import ConfigError
from secureafl.core.ledger import Ledger
from secureafl.core.privacy import Privacy
from secureafl.core.protocols import Attack
from secureafl.core.server import Server, ServerState
from secureafl.core.types import Arrival
from secureafl.partitions.shards import Shards
from secureafl.runtime.attackers import Attackers
from secureafl.runtime.batches import own_batch
from secureafl.runtime.clients import Clients, on_device
from secureafl.settings import short_name
from secureafl.simulation.simulator import choose_device, deal_samples, seeded_model

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.types import Data
    from secureafl.experiment import Experiment

DEALT = "dealt"  # in place of a folder: the share of the task's data dealt to the client's slot


@dataclass(frozen=True)
class ClientOptions:
    """How this client differs from the others."""

    data: str = DEALT  # or the folder of its own data
    attack: Attack | None = None  # for tests: what it plays; None: as the experiment says
    privacy: Privacy | None = None  # what it insists on; None: as the experiment says


class TrainResult(NamedTuple):
    """An update, and what was played if it is poisoned."""

    update: Float[np.ndarray, " d"]
    attack: str


class Trainer:
    """One client's data and model, ready for any number of requests."""

    def __init__(self, experiment: Experiment, client_options: ClientOptions) -> None:
        """Load the data."""
        if experiment.threads:
            torch.set_num_threads(experiment.threads)
        self._experiment = experiment = _with_options(experiment, client_options)
        device = choose_device(experiment.device)
        data = experiment.task.load()
        dealt = client_options.data == DEALT
        self._shards = deal_samples(experiment, data) if dealt else _all_of(data, experiment)
        model = seeded_model(experiment, device)
        self._clients = Clients(
            experiment.task, on_device(data, device), model, experiment.training
        )
        self._clients.refuse_mixing()
        self._attackers = make_attackers(experiment, self._shards, self._clients)
        if client_options.attack is not None:
            self._attackers.malicious[:] = True

    def train(self, weights: Float[np.ndarray, " d"], client: int, version: int) -> TrainResult:
        """What the client in that slot answers to the model of that version."""
        base = torch.from_numpy(weights).to(self._attackers.device)
        rows = self._rows(client, version)
        update = uploaded(self._clients, self._attackers, base, rows, client, version)
        poisoned = self._attackers.attacks(client, version)
        attack = short_name(self._experiment.attack) if poisoned else ""
        return TrainResult(update.detach().cpu().numpy(), attack)

    def _rows(self, client: int, version: int) -> np.ndarray:
        made = self._experiment
        return own_batch(
            self._shards.rows[client], made.training.samples, made.seed, client, version
        )


def uploaded(
    clients: Clients,
    attackers: Attackers,
    base: Float[Tensor, " d"],
    rows: np.ndarray,
    client: int,
    version: int,
) -> Float[Tensor, " d"]:
    """What a client uploads: private if it is to be, or what the attack makes of it.

    Rounds are the server's; all a client knows of them is the version of its model.
    """
    chosen = torch.from_numpy(rows).to(base.device)
    if not attackers.attacks(client, version):
        if clients.training.privacy.off:
            return clients.update(base, chosen)
        # Noise that anybody else could draw again would hide nothing.
        secret = torch.tensor(secrets.randbits(40), device=base.device)
        return clients.private_update(base, chosen, secret)
    number = torch.tensor(client, device=base.device)

    def poison(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return attackers.poison_batch(inputs, labels, number)

    def train_on(weights: Tensor, further: Tensor, attacker_index: Tensor) -> Tensor:
        return clients.gradient(weights, further, poison)

    gradient = clients.update(base, chosen, poison)
    trained = Arrival(number, torch.zeros_like(number), gradient, base)
    # Of the server an attack that knows its own data only sees the rate.
    server = Server(None, 0, clients.training.server_rate)  # pyrefly: ignore
    state = ServerState(version, base, (), Ledger())
    return attackers.poison_update(trained, client, train_on, server, state)


def make_attackers(experiment: Experiment, shards: Shards, clients: Clients) -> Attackers:
    """Those of the experiment, each numbered by its slot: in a deployment nobody counts them."""
    if experiment.attack.knows != "own":
        name, knows = short_name(experiment.attack), experiment.attack.knows
        remedy = "choose one that knows 'own', see 'secureafl list attacks --verbose'"
        raise ConfigError(
            f"attack = {name!r}: it must see more than its own data ({knows}); {remedy}"
        )
    attackers = Attackers(experiment, shards, clients)
    attackers.number = np.arange(experiment.clients)
    return attackers


def _with_data(experiment: Experiment, data: str) -> Experiment:
    if data == DEALT:
        return experiment
    if not Path(data).is_dir():
        raise ConfigError(f"--data {data}: no such folder; give one, or '{DEALT}'")
    names = {f.name for f in dataclasses.fields(experiment.task)}  # pyrefly: ignore
    if "data_dir" not in names:
        raise ConfigError(f"--data {data}: the task {short_name(experiment.task)} reads no folder")
    task = dataclasses.replace(experiment.task, data_dir=data)  # pyrefly: ignore
    return dataclasses.replace(experiment, task=task)


def _with_options(experiment: Experiment, client_options: ClientOptions) -> Experiment:
    experiment = _with_data(experiment, client_options.data)
    if client_options.attack is not None:
        experiment = dataclasses.replace(experiment, attack=client_options.attack)
    if client_options.privacy is None:
        return experiment
    training = dataclasses.replace(experiment.training, privacy=client_options.privacy)
    return dataclasses.replace(experiment, training=training)


def _all_of(data: Data, experiment: Experiment) -> Shards:
    """Whatever slot the client is given, all samples are its own."""
    rows = np.arange(len(data.train_labels))
    return Shards([rows] * experiment.clients, np.zeros(experiment.clients, int))
