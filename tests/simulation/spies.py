"""Attacks that use all they are shown, one for each level of knowledge, and other test plug-ins."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from secureafl.core.trees import name_tensors
from secureafl.partitions.shards import Shards


class State(NamedTuple):
    uploads: torch.Tensor  # of each member
    sum: torch.Tensor  # of all that was uploaded


@dataclass(frozen=True)
class SpyOwn:
    knows = "own"
    presets = {"stealth": {"share": 0.01}}  # noqa: RUF012  a plain attribute, as attacks have it

    share: float = 0.1

    def init(self, scene):
        device = scene.pixel_mean.device
        return State(
            torch.zeros(scene.num_malicious, device=device),
            torch.zeros(scene.num_parameters, device=device),
        )

    def poison_batch(self, state, inputs, labels, member):
        mine = state.uploads.index_select(0, member.view(1))
        return inputs + 0.01 * mine, labels

    def poison_update(self, state, trained, seen):
        noise = torch.empty_like(trained.gradient).normal_(generator=seen.generator)
        further = [seen.train(trained.base, k) for k in range(3)]
        update = trained.gradient + self.share * (sum(further) + noise + state.sum.sign())
        for extra in self.extras(seen):
            update = update + self.share * extra
        state.uploads[seen.member] += 1
        return update, State(state.uploads, state.sum + update)

    def extras(self, seen):
        assert seen.trained is None
        assert seen.insight is None
        return []


@dataclass(frozen=True)
class SpyColluders(SpyOwn):
    knows = "colluders"

    def extras(self, seen):
        table = seen.trained
        assert not (table.known & ~table.malicious).any()
        assert not table.gradients[~table.known].any()
        return [table.gradients.sum(dim=0)]


@dataclass(frozen=True)
class SpyEverybody(SpyOwn):
    knows = "everybody"

    def extras(self, seen):
        assert seen.insight is None
        return [seen.trained.gradients.sum(dim=0)]


@dataclass(frozen=True)
class SpyDefense(SpyOwn):
    knows = "defense"

    def extras(self, seen):
        insight = seen.insight
        assert int(insight.server.round) == seen.round
        state = name_tensors(insight.state, "state").values()
        total = sum((t.double().nan_to_num(0, 0, 0).sum() for t in state), torch.zeros(()))
        return [seen.trained.gradients.sum(dim=0), total.sign(), insight.server.weights]


@dataclass(frozen=True)
class Witness:
    """Uploads what it trained, and keeps what it was shown."""

    knows = "defense"
    shown: ClassVar[list] = []

    def init(self, scene):
        self.shown.clear()
        self.shown.append(scene)
        return ()

    def poison_batch(self, state, inputs, labels, member):
        return inputs, labels

    def poison_update(self, state, trained, seen):
        table = seen.trained._replace(
            gradients=seen.trained.gradients.clone(), known=seen.trained.known.clone()
        )
        further = [seen.train(trained.base, k) for k in (0, 1, 0)]
        self.shown.append((trained, seen._replace(trained=table), further))
        return trained.gradient, state


@dataclass(frozen=True)
class Nosy(SpyEverybody):
    knows = "everything"


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
