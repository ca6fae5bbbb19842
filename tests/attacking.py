"""What attacks are shown, made up for tests."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from secureafl.core.types import Arrival, AttackContext, AttackerView, ClientGradients

CHANNELS = torch.tensor([0.3, 0.4, 0.5])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def context(shape=(1, 8, 8), classes=10, seed=0, clients=6, malicious=2, size=12):
    """Before training; a model of `size` parameters in two pieces."""
    mean = CHANNELS[: shape[0]] if len(shape) == 3 else torch.zeros(1)
    layout = {"weight": (size - 1, 1), "bias": (1,)}
    return AttackContext(
        clients, malicious, classes, shape, mean, mean + 0.1, layout, generator(seed)
    )


def no_training(weights, batch):
    raise AssertionError("this attack trains no further")


def view(attacker_index=0, train=no_training, learning_rate=0.1, trained=None):
    """One upload, as its attacker sees it."""
    return AttackerView(0, attacker_index, learning_rate, generator(1), train, trained)


def arrival(gradient, base=None):
    """What a malicious client trained."""
    base = torch.zeros_like(gradient) if base is None else base
    return Arrival(torch.tensor(0), torch.tensor(0), gradient, base)


class Crowd(NamedTuple):
    """Latest gradients of everybody, of whom some trained already and some are malicious."""

    gradients: np.ndarray
    known: np.ndarray
    malicious: np.ndarray

    @property
    def honest(self):
        """Gradients of the honest clients that trained."""
        return self.gradients[self.known & ~self.malicious]

    @property
    def colluders(self):
        """Gradients of the malicious clients that trained."""
        return self.gradients[self.known & self.malicious]

    @property
    def size(self):
        """The scale of what is seen."""
        return float(np.abs(self.gradients[self.known]).max(initial=0))

    def seen(self, dtype=torch.float64):
        """As the attack sees it."""
        arrays = map(torch.from_numpy, self)
        gradients, known, malicious = arrays
        return ClientGradients(gradients.to(dtype), known, malicious)


@st.composite
def crowds(draw, dims=(1, 3, 8), kinds=("plain", "twins", "huge", "tiny", "common")):
    """Honest and malicious clients in any order; some coincide, are huge, or differ by little."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = draw(st.integers(1, 10)), draw(st.sampled_from(dims))
    gradients = rng.normal(size=size) + rng.normal(size=(count, size))
    kind = draw(st.sampled_from(kinds))
    if kind == "twins":
        gradients = gradients[rng.integers(max(1, count // 2), size=count)]
    if kind == "common":
        gradients = gradients[0] + 1e-3 * gradients
    gradients *= {"huge": 1e18, "tiny": 1e-18}.get(kind, 1)
    known = rng.random(count) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    malicious = rng.random(count) < draw(st.sampled_from([0.0, 0.2, 0.5]))
    return Crowd(gradients, known, malicious)


def crafted(attack, crowd, dtype=torch.float64, own=None):
    """What the attack uploads at the first sight of this crowd, as an array."""
    own = torch.zeros(crowd.gradients.shape[1], dtype=dtype) if own is None else own
    state = attack.init(context(clients=len(crowd.known), size=len(own)))
    return attack.poison_update(state, arrival(own), view(trained=crowd.seen(dtype)))[0].numpy()


def lone(gradients, malicious=()):
    """Everybody trained; those numbered in `malicious` are."""
    gradients = np.asarray(gradients, dtype=float)
    numbers = np.arange(len(gradients))
    return Crowd(gradients, numbers >= 0, np.isin(numbers, malicious))


# Whoever knows of no other client's gradient must upload its own.
def uploads_its_own(attack, crowd):
    """Whether it does."""
    own = torch.arange(1.0, crowd.gradients.shape[1] + 1, dtype=torch.float64)
    return np.array_equal(crafted(attack, crowd, own=own), own.numpy())


def assert_close(found, expected, crowd, tolerance=1e-9):
    """Equal up to rounding, measured by the crowd's scale."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * crowd.size)
