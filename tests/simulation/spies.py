"""Attacks that use all they are shown, one for each level of knowledge, and other test plug-ins."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from secureafl.core.trees import name_tensors
from secureafl.defenses import AsyncSgd
from secureafl.kernels.dispatch import version_for
from secureafl.partitions.shards import Shards


class State(NamedTuple):
    uploads: torch.Tensor  # of each attacker
    sum: torch.Tensor  # of all that was uploaded


@dataclass(frozen=True)
class SpyOwn:
    knows = "own"
    presets = {"stealth": {"share": 0.01}}  # noqa: RUF012  a plain attribute, as attacks have it

    share: float = 0.1

    def init(self, context):
        device = context.pixel_mean.device
        return State(
            torch.zeros(context.num_malicious, device=device),
            torch.zeros(context.num_parameters, device=device),
        )

    def poison_batch(self, state, inputs, labels, attacker_index):
        mine = state.uploads.index_select(0, attacker_index.view(1))
        return inputs + 0.01 * mine, labels

    def poison_update(self, state, arrival, view):
        noise = torch.empty_like(arrival.gradient).normal_(generator=view.generator)
        further = [view.train(arrival.base, k) for k in range(3)]
        update = arrival.gradient + self.share * (sum(further) + noise + state.sum.sign())
        for extra in self.extras(view):
            update = update + self.share * extra
        state.uploads[view.attacker_index] += 1
        return update, State(state.uploads, state.sum + update)

    def extras(self, view):
        assert view.clients is None
        assert view.snapshot is None
        return []


@dataclass(frozen=True)
class Trainer(SpyOwn):
    """Can be recorded, and trains on batches that differ from attacker to attacker."""

    recordable = True
    further_batches = 2

    def poison_update(self, state, arrival, view):
        further = view.train(arrival.base, 1) + view.train(arrival.base, 0)
        state.uploads[view.attacker_index] += 1 + view.attacker_index
        return arrival.gradient + self.share * further, state


@dataclass(frozen=True)
class SpyColluders(SpyOwn):
    knows = "colluders"

    def extras(self, view):
        table = view.clients
        assert not (table.known & ~table.malicious).any()
        assert not table.gradients[~table.known].any()
        return [table.gradients.sum(dim=0)]


@dataclass(frozen=True)
class SpyEverybody(SpyOwn):
    knows = "everybody"

    def extras(self, view):
        assert view.snapshot is None
        return [view.clients.gradients.sum(dim=0)]


@dataclass(frozen=True)
class SpyDefense(SpyOwn):
    knows = "defense"

    def extras(self, view):
        snapshot = view.snapshot
        assert int(snapshot.server.round) == view.round
        state = name_tensors(snapshot.state, "state").values()
        total = sum((t.double().nan_to_num(0, 0, 0).sum() for t in state), torch.zeros(()))
        return [view.clients.gradients.sum(dim=0), total.sign(), snapshot.server.weights]


@dataclass(frozen=True)
class Inquirer(SpyDefense):
    """Asks about two uploads, and goes on from what is decided on them."""

    def poison_update(self, state, arrival, view):
        total = torch.zeros_like(arrival.gradient)
        for factor in (2, -1):
            decision = view.ask(arrival._replace(gradient=factor * arrival.gradient))
            total = total + decision.direction + decision.accepted + 2 * decision.ready
        further = view.train(arrival.base, 1)
        arrival = arrival._replace(gradient=arrival.gradient + self.share * (total + further))
        return super().poison_update(state, arrival, view)


@dataclass(frozen=True)
class Witness:
    """Uploads what it trained, and keeps what it was shown."""

    knows = "defense"
    shown: ClassVar[list] = []

    def init(self, context):
        self.shown.clear()
        self.shown.append(context)
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        table = view.clients._replace(
            gradients=view.clients.gradients.clone(), known=view.clients.known.clone()
        )
        further = [view.train(arrival.base, k) for k in (0, 1, 0)]
        self.shown.append((arrival, view._replace(clients=table), further))
        return arrival.gradient, state


@dataclass(frozen=True)
class Nosy(SpyEverybody):
    knows = "everything"


@dataclass(frozen=True)
class Spoiler:
    """Uploads what no server may take."""

    knows = "own"

    what: str = "nan"

    def init(self, context):
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        update = arrival.gradient.clone()
        if self.what == "one_nan":
            update[3] = torch.nan
        whole = {"nan": torch.nan, "infinite": torch.inf, "long": 1e30}
        made = {
            "one_nan": update,
            "shorter": update[:-1],
            "matrix": update[None],
            "double": update.double(),
            "list": update.tolist(),
        }
        if self.what in whole:
            return torch.full_like(update, whole[self.what]), state
        return made[self.what], state


@dataclass(frozen=True)
class Surroundings:
    """Plain asynchronous SGD that notes with which kernels and threads it runs."""

    name: str = ""
    seen: ClassVar[dict] = {}

    def init(self, num_clients, weights):
        if weights.device.type != "meta":  # where the run only estimates its memory
            self._note(weights)
        return ()

    def step(self, state, arrival, server):
        self._note(arrival.base)
        return AsyncSgd().step(state, arrival, server)

    def forget(self, state, client):
        self._note(torch.zeros(1))
        return state

    def _note(self, weights):
        kernels = version_for(weights).__name__.rpartition(".")[2]
        self.seen.setdefault(self.name, set()).add((kernels, torch.get_num_threads()))


@dataclass(frozen=True)
class Asking:
    """Uploads what it trained, and asks the defence what it would do with that."""

    knows = "defense"

    def init(self, context):
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        defense, kept, server = view.snapshot
        asked = Surroundings(f"asked by {defense.name}")
        asked.step(kept, arrival, server)
        return arrival.gradient, state


@dataclass(frozen=True)
class Tiring(AsyncSgd):
    """Plain asynchronous SGD whose steps get shorter."""

    def step(self, state, arrival, server):
        decision, state = super().step(state, arrival, server)
        return decision._replace(direction=decision.direction / (1 + server.round)), state


@dataclass(frozen=True)
class Shuffled:
    """Samples dealt out like cards, whatever their labels are."""

    def deal(self, labels, num_clients, rng, origin=None):
        client = rng.permutation(len(labels)) % num_clients
        rows = [np.flatnonzero(client == i) for i in range(num_clients)]
        return Shards(rows, np.zeros(num_clients, int))


SPIES = {
    cls.knows: f"simulation.spies:{cls.__name__}"
    for cls in (SpyOwn, SpyColluders, SpyEverybody, SpyDefense)
}
