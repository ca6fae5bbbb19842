"""The malicious clients of a run: who they are, what they may know, and what they upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from secureafl.core.errors import require
from secureafl.core.flat_model import flatten, layout
from secureafl.core.random import numpy_generator, torch_generator
from secureafl.core.traits import further_batches, is_recordable
from secureafl.core.trees import name_tensors, rebuild
from secureafl.core.types import (
    Arrival,
    AttackContext,
    AttackerView,
    ClientGradients,
    Knowledge,
    RecordableView,
    ServerSnapshot,
)
from secureafl.kernels.rows import note_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from secureafl.experiment import Experiment
    from secureafl.partitions.shards import Shards
    from secureafl.runtime.clients import Clients

# Gradient at some weights on some rows, as one of the attackers computes it.
TrainOn = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attackers:
    """Stands between the attack and the run: it is shown what its `knows` allows, and no more."""

    def __init__(
        self,
        experiment: Experiment,
        shards: Shards,
        clients: Clients,
        malicious: Bool[np.ndarray, " n"],
        number: Int[np.ndarray, " n"],
    ) -> None:
        """Start the attack; `number` is that of each malicious client among these, from 0."""
        self._experiment, self._shards = experiment, shards
        self.attack, self.device = experiment.attack, clients.data.pixel_mean.device
        knows = self.attack.knows
        known = get_args(Knowledge)
        require(knows in known, "attack.knows", knows, f"choose one of {', '.join(known)}")
        self.malicious, self.number = malicious, number
        self._numbers = torch.arange(experiment.clients, device=self.device)
        self.state = self.attack.init(_context(experiment, clients))
        self.recordable = is_recordable(self.attack)  # whether a GPU can record `craft_update`
        self._client_gradients = None if knows == "own" else self._no_gradients(clients.model)
        heard = malicious | (knows != "colluders")  # from whom it may know a gradient, if from any
        self._heard = torch.from_numpy(heard).to(self.device)

    def _no_gradients(self, model: torch.nn.Module) -> ClientGradients:
        weights = flatten(model)
        gradients = weights.new_zeros(len(self.malicious), weights.numel())
        malicious = torch.from_numpy(self.malicious).to(self.device)
        return ClientGradients(gradients, torch.zeros_like(malicious), malicious)

    def attacks(self, client: int, now: int) -> bool:
        """Whether the client poisons what it uploads in round `now`."""
        first, end = self._experiment.attack_from, self._experiment.attack_until
        return bool(self.malicious[client]) and first <= now and (not end or now < end)

    def poison_batch(
        self, inputs: Tensor, labels: Tensor, attacker_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The batch that this attacker trains on."""
        return self.attack.poison_batch(self.state, inputs, labels, attacker_index)

    @property
    def listen(self) -> bool:
        """Whether the attack may know what other clients train."""
        return self._client_gradients is not None

    def note(self, client: Int[Tensor, ""], gradient: Tensor) -> None:
        """Let the attack know what a client trained, if it may.

        A gradient that is not finite tells nothing; the one before it stays.
        """
        table = self._client_gradients
        assert table is not None
        note_row(table.gradients, table.known, client, gradient, self._heard)

    @property
    def see_server(self) -> bool:
        """Whether `poison_update` must be given a snapshot of the server."""
        return self.attack.knows == "defense"

    def poison_update(
        self,
        trained: Arrival,
        client: int,
        now: int,
        train_on: TrainOn,
        snapshot: ServerSnapshot | None = None,
        recorded: Callable[..., Any] | None = None,
    ) -> Tensor:
        """What the client uploads in round `now` instead of what it trained.

        `recorded` is that of `AttackerView`.
        """
        made = self._experiment
        seen = AttackerView(
            now,
            int(self.number[client]),
            made.scheduled_training.server_rate,
            torch_generator(made.seed, "attack", now + 1, self.device),
            self._further_training(client, now, train_on),
            self._client_gradients,
            snapshot,
            recorded,
        )
        return self._poisoned(trained, seen)

    @property
    def changing(self) -> list[Tensor]:
        """What an upload of the attack may change."""
        return [*name_tensors(self.state, "").values()]

    def craft_update(
        self, trained: Arrival, client: int, train: Callable[[Tensor, int], Tensor]
    ) -> Tensor:
        """As `poison_update`, of an attack that needs nothing that differs from round to round.

        `train` takes the rows of the k-th further batch from `draw_further`.
        """
        index, rate = int(self.number[client]), self._experiment.scheduled_training.server_rate
        return self._poisoned(trained, RecordableView(index, rate, self._client_gradients, train))

    def draw_further(
        self, client: Int[np.ndarray, " rounds"]
    ) -> Int[np.ndarray, "rounds batches batch"]:
        """The rows of all further batches of a run whose attack is recorded.

        `client` is who uploads in each round; where an honest one does, they are of no use.
        """
        count = further_batches(self.attack) if self.recordable else 0
        rows = np.zeros((len(client), count, self._experiment.training.batch_size), np.int64)
        for now in range(len(client) if count else 0):
            if self.attacks(client[now], now):
                for number in range(count):
                    rows[now, number] = self._further_rows(client[now], now, number)
        return rows

    def _further_rows(self, client: int, now: int, number: int) -> Int[np.ndarray, " batch"]:
        made = self._experiment
        rng = numpy_generator(made.seed, f"further batches/{now}/{number}")
        return rng.choice(self._shards.rows[client], made.training.batch_size)

    def _poisoned(self, trained: Arrival, seen: AttackerView | RecordableView) -> Tensor:
        view = cast(AttackerView, seen)  # what it lacks, such an attack does not look at
        update, changed = self.attack.poison_update(self.state, trained, view)
        self._keep(changed)
        return update

    def _further_training(
        self, client: int, now: int, train_on: TrainOn
    ) -> Callable[[Tensor, int], Tensor]:
        attacker_index = self._numbers[self.number[client]]

        def train(weights: Tensor, number: int) -> Tensor:
            rows = torch.from_numpy(self._further_rows(client, now, number))
            return train_on(weights, rows.to(self.device, non_blocking=True), attacker_index)

        return train

    @property
    def _in_place(self) -> bool:
        """Whether the state stays where it lay at first: recorded work looks for it there."""
        return self.device.type == "cuda"

    def _keep(self, state: Any) -> None:
        """Take over the attack's new state."""
        if not self._in_place:
            self.state = state
            return
        old, new = (name_tensors(s, "").values() for s in (self.state, state))
        pairs = zip(old, new, strict=True)
        moved = [(kept, made.clone()) for kept, made in pairs if made is not kept]
        for kept, made in moved:
            kept.copy_(made)

    def snapshot(self) -> dict[str, Tensor]:
        """What changes during a run, by name."""
        return name_tensors(self.state, "attack") | name_tensors(
            self._client_gradients or (), "trained"
        )

    def restore(self, named: Mapping[str, Tensor]) -> None:
        """Go on from a snapshot."""
        self.state = rebuild(self.state, "attack", named)
        if self._client_gradients is not None:
            self._client_gradients = rebuild(self._client_gradients, "trained", named)


def choose_malicious(experiment: Experiment, group: np.ndarray) -> np.ndarray:
    """Which clients are malicious: any, or label group by label group."""
    rng = numpy_generator(experiment.seed, "malicious")
    order = rng.permutation(experiment.clients)
    if experiment.placement == "grouped":
        rank = rng.permutation(int(group.max()) + 1)
        order = order[np.argsort(rank[group[order]], kind="stable")]
    malicious = np.zeros(experiment.clients, bool)
    malicious[order[: experiment.num_malicious]] = True
    return malicious


def _context(experiment: Experiment, clients: Clients) -> AttackContext:
    data, labels = clients.data, clients.data.train_labels
    return AttackContext(
        experiment.clients,
        experiment.num_malicious,
        0 if labels.is_floating_point() else int(labels.max()) + 1,
        tuple(data.train_inputs.shape[1:]),
        data.pixel_mean,
        data.pixel_std,
        layout(clients.model),
        torch_generator(experiment.seed, "attack", 0, data.pixel_mean.device),
    )
