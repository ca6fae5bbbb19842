"""What a client does with a model it was sent: the training of the simulator, on its own data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from secureafl.core.errors import ConfigError, require
from secureafl.core.ledger import Ledger
from secureafl.core.protocols import Attack
from secureafl.core.random import torch_generator
from secureafl.core.server import Server, ServerState
from secureafl.core.types import Arrival
from secureafl.core.vectors import clipped
from secureafl.partitions.shards import Shards
from secureafl.settings import short_name
from secureafl.simulation.attackers import Attackers
from secureafl.simulation.batches import own_batch
from secureafl.simulation.clients import Clients, on_device
from secureafl.simulation.simulator import choose_device, deal_samples, seeded_model

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.types import Data
    from secureafl.experiment import Experiment

DEALT = "dealt"  # in place of a folder: the share of the task's data dealt to the client's slot


@dataclass(frozen=True)
class Privacy:
    """What a client does to its own update before anybody sees it."""

    clip_norm: float = 0.0  # the longest update that leaves the client; 0: any
    noise: float = 0.0  # standard deviation of the noise in each coordinate, in clip_norms

    def __post_init__(self) -> None:
        require(self.clip_norm >= 0, "clip_norm", self.clip_norm, "give 0 (off) or a norm")
        require(self.noise >= 0, "noise", self.noise, "give 0 (off) or a multiple of clip_norm")
        fits = self.clip_norm > 0 or not self.noise
        require(fits, "noise", self.noise, "give clip_norm too: noise is measured in it")

    def applied(self, update: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """The update as it leaves; the noise comes from the machine, and cannot be drawn again."""
        if not self.clip_norm:
            return update
        update = clipped(update, torch.tensor(self.clip_norm, dtype=torch.float64))
        if not self.noise:
            return update
        generator = torch.Generator()
        generator.seed()  # from the operating system
        drawn = torch.randn(update.shape, generator=generator, dtype=update.dtype)
        return update + self.noise * self.clip_norm * drawn.to(update.device)


@dataclass(frozen=True)
class Conduct:
    """How this client differs from the others."""

    data: str = DEALT  # or the folder of its own data
    attack: Attack | None = None  # for tests: what it plays; None: as the experiment says
    privacy: Privacy = field(default_factory=Privacy)


class Trained(NamedTuple):
    """An update, and what was played if it is poisoned."""

    update: Float[np.ndarray, " d"]
    attack: str


class Trainer:
    """One client's data and model, ready for any number of requests."""

    def __init__(self, experiment: Experiment, conduct: Conduct) -> None:
        """Load the data."""
        if experiment.threads:
            torch.set_num_threads(experiment.threads)
        experiment = _with_attack(_with_data(experiment, conduct.data), conduct.attack)
        self._experiment, self._privacy = experiment, conduct.privacy
        device = choose_device(experiment.device)
        data = experiment.task.load()
        dealt = conduct.data == DEALT
        self._shards = deal_samples(experiment, data) if dealt else _all_of(data, experiment)
        model = seeded_model(experiment, device)
        self._clients = Clients(
            experiment.task, on_device(data, device), model, experiment.training
        )
        self._attackers = make_attackers(experiment, self._shards, self._clients)
        if conduct.attack is not None:
            self._attackers.malicious[:] = True

    def train(self, weights: Float[np.ndarray, " d"], client: int, version: int) -> Trained:
        """What the client in that slot answers to the model of that version."""
        base = torch.from_numpy(weights).to(self._attackers.device)
        poisoned = self._attackers.attacks(client, version)
        rows = self._rows(client, version)
        update = poisoned_update(self._clients, self._attackers, base, rows, client, version)
        if not poisoned:
            update = self._privacy.applied(update)
        attack = short_name(self._experiment.attack) if poisoned else ""
        return Trained(update.detach().cpu().numpy(), attack)

    def _rows(self, client: int, version: int) -> np.ndarray:
        made = self._experiment
        return own_batch(self._shards.rows[client], made.training.samples, made.seed, client, version)


def poisoned_update(
    clients: Clients,
    attackers: Attackers,
    base: Float[Tensor, " d"],
    rows: np.ndarray,
    client: int,
    version: int,
) -> Float[Tensor, " d"]:
    """A client's update, through the attack if it is one of the attackers.

    Rounds are the server's; all a client knows of them is the version of its model.
    """
    chosen = torch.from_numpy(rows).to(base.device)
    if not attackers.attacks(client, version):
        return clients.update(base, chosen)
    number = torch.tensor(client, device=base.device)

    def poison(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return attackers.poison_batch(inputs, labels, number)

    def train_on(weights: Tensor, further: Tensor, member: Tensor) -> Tensor:
        return clients.gradient(weights, further, poison)

    gradient = clients.update(base, chosen, poison)
    trained = Arrival(number, torch.zeros_like(number), gradient, base)
    server = Server(None, 0, clients.training.server_rate)  # pyrefly: ignore  (only its rate is seen)
    state = ServerState(version, base, (), Ledger())
    return attackers.poison_update(trained, client, train_on, server, state)


def make_attackers(experiment: Experiment, shards: Shards, clients: Clients) -> Attackers:
    """Those of the experiment, each numbered by its slot: in a deployment nobody counts them."""
    if experiment.attack.knows != "own":
        name, knows = short_name(experiment.attack), experiment.attack.knows
        remedy = "choose one that knows 'own', see 'secureafl list attacks --verbose'"
        raise ConfigError(f"attack = {name!r}: it must see more than its own data ({knows}); {remedy}")
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


def _with_attack(experiment: Experiment, attack: Attack | None) -> Experiment:
    return experiment if attack is None else dataclasses.replace(experiment, attack=attack)


def _all_of(data: Data, experiment: Experiment) -> Shards:
    """Whatever slot the client is given, all samples are its own."""
    rows = np.arange(len(data.train_labels))
    return Shards([rows] * experiment.clients, np.zeros(experiment.clients, int))
