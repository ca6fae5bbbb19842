"""A client's training: as in the simulator, on its own data."""

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
from secureafl.core.flat_model import flatten
from secureafl.core.privacy import Privacy
from secureafl.core.protocols import Attack
from secureafl.core.types import Arrival
from secureafl.deployment.samples import InputFacts, read_client_data
from secureafl.partitions.shards import Shards
from secureafl.runtime.attackers import Attackers, choose_malicious
from secureafl.runtime.batches import own_batch
from secureafl.runtime.clients import Clients
from secureafl.runtime.devices import ComputeContext, choose_device, on_device
from secureafl.runtime.model_checks import check_model
from secureafl.runtime.setup import deal_samples, seeded_model
from secureafl.settings import short_name

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.types import Data
    from secureafl.experiment import Experiment

DEALT = "dealt"  # in place of own data: the share of the task's data dealt to the client's slot


@dataclass(frozen=True)
class ClientOptions:
    """How this client differs from the others."""

    data: str = DEALT  # or the place of its own data, a folder or a file .npz
    attack: Attack | None = None  # for tests: the attack it plays; None: as the experiment says
    privacy: Privacy | None = None  # what it insists on; None: as the experiment says
    task: str = ""  # module:Class that a request may name; nothing else is imported


class TrainResult(NamedTuple):
    """An update, and the name of the attack if it is poisoned."""

    update: Float[np.ndarray, " d"]
    attack: str


class Trainer:
    """One client's data and model, ready for any number of requests."""

    def __init__(
        self, experiment: Experiment, client_options: ClientOptions, facts: InputFacts
    ) -> None:
        """Load the data; `facts` are the server's."""
        self._experiment = _with_options(experiment, client_options)
        self._device = choose_device(self._experiment.device)
        self._compute = ComputeContext(experiment.threads, device=self._device)
        with self._compute:
            self._prepare(client_options, facts)

    def _prepare(self, client_options: ClientOptions, facts: InputFacts) -> None:
        made = self._experiment
        if client_options.data == DEALT:
            data = facts.standardise(made.task.load())
            self._shards = deal_samples(made, data)
        else:
            data = read_client_data(made.task, Path(client_options.data).expanduser(), facts)
            self._shards = _all_of(data, made)
        model = seeded_model(made, self._device)
        self._size = flatten(model).numel()
        data = on_device(data, self._device)
        self._clients = Clients(made.task, data, model, made.scheduled_training)
        check_model(self._clients)
        self._attackers = self._make_attackers(client_options.attack is not None)

    def _make_attackers(self, all_slots: bool) -> Attackers:
        """Attackers are numbered by their slots: how many there are is not known to a client."""
        made = self._experiment
        _require_own_data(made.attack)
        chosen = choose_malicious(made, self._shards.group)
        malicious = np.ones_like(chosen) if all_slots else chosen
        return Attackers(made, self._shards, self._clients, malicious, np.arange(made.clients))

    def train(self, weights: Float[np.ndarray, " d"], client: int, version: int) -> TrainResult:
        """What the client in that slot answers to the model of that version.

        Rounds are the server's; all a client knows of them is the version of its model.
        """
        if len(weights) != self._size:
            sizes = f"{len(weights):,} numbers, and the one of the task here {self._size:,}"
            raise ConfigError(f"the server's model has {sizes}; use the same task on both sides")
        poisoned = self._attackers.attacks(client, version)
        with self._compute:
            base = torch.from_numpy(weights).to(self._device)
            rows = torch.from_numpy(self._rows(client, version)).to(self._device)
            compute = self._poisoned_update if poisoned else self._honest_update
            update = compute(base, rows, client, version).detach().cpu().numpy()
        return TrainResult(update, short_name(self._experiment.attack) if poisoned else "")

    def _rows(self, client: int, version: int) -> np.ndarray:
        made = self._experiment
        return own_batch(
            self._shards.rows[client], made.training.samples, made.seed, client, version
        )

    def _honest_update(self, base: Tensor, rows: Tensor, client: int, version: int) -> Tensor:
        if self._clients.training.privacy.off:
            return self._clients.update(base, rows)
        # Noise that others could draw again would hide nothing.
        secret = torch.tensor(secrets.randbits(40), device=base.device)
        return self._clients.private_update(base, rows, secret)

    def _poisoned_update(self, base: Tensor, rows: Tensor, client: int, version: int) -> Tensor:
        clients, attackers = self._clients, self._attackers
        number = torch.tensor(client, device=base.device)

        def poison(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return attackers.poison_batch(inputs, labels, number)

        def train_on(weights: Tensor, further: Tensor, attacker_index: Tensor) -> Tensor:
            return clients.gradient(weights, further, poison)

        gradient = clients.update(base, rows, poison)
        trained = Arrival(number, torch.zeros_like(number), gradient, base)
        return attackers.poison_update(trained, client, version, train_on)


def _require_own_data(attack: Attack) -> None:
    """Raise if an attack must see what no client of a deployment sees."""
    if attack.knows != "own":
        name = short_name(attack)
        remedy = "choose one that knows 'own', see 'secureafl list attacks --verbose'"
        raise ConfigError(
            f"attack = {name!r}: it must see more than its own data ({attack.knows}); {remedy}"
        )


def _with_options(experiment: Experiment, client_options: ClientOptions) -> Experiment:
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
