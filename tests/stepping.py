"""One server step on random numbers, for any version of the hot operations."""

import contextlib

import numpy as np
import pytest
import torch

from secureafl.aggregators import Mean, Median, TrimmedMean
from secureafl.core.types import Arrival, Entry
from secureafl.kernels import reference
from secureafl.kernels.dispatch import using_kernels
from secureafl.kernels.memory import Memory
from secureafl.kernels.step import Selection
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH, as_tiles, num_tiles

RULES = {
    "median": Median().ranks,
    "mean": Mean().ranks,
    "trimmed_mean": TrimmedMean(0.2).ranks,
    "trimmed_mean_hard": TrimmedMean(0.45).ranks,
    "smallest": lambda count: (torch.zeros_like(count), torch.zeros_like(count)),
    "largest": lambda count: (count - 1, count - 1),
    "one_off_middle": lambda count: (count // 3, count // 3),
    "lower_half": lambda count: (torch.zeros_like(count), count // 2),
}
MEDIAN = RULES["median"]
# Of what was added up on the way: sums of n or of `WIDTH` numbers round in any order.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def window(first, last=None):
    """A rule that averages these order statistics whoever is there."""
    ranks = torch.tensor(first), torch.tensor(first if last is None else last)
    return lambda count: ranks


def some(seed, n, count):
    """Exactly `count` of n clients."""
    chosen = np.random.default_rng(seed).permutation(n)[:count]
    present = torch.zeros(n, dtype=torch.bool)
    present[torch.from_numpy(chosen)] = True
    return present


@contextlib.contextmanager
def always_compiled():
    """However small the memory is; whatever is not compiled raises."""
    cpu = pytest.importorskip("secureafl.kernels.cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "WORTH_IT", 0)
        patch.setattr(cpu, "reference", None)
        yield cpu


@contextlib.contextmanager
def always_plain():
    """Whatever is installed and chosen before."""
    with using_kernels("reference"):
        yield


@contextlib.contextmanager
def threads(count):
    """So many for torch, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usual_entry(slots, keep=True):
    """What the package's own estimators remember in so many vectors."""
    own = slots - OWN
    places, parts = [], ()
    if own >= 2:
        places, parts = [own // 2 - 1, own - 1], ("step", "change")
    elif own:
        places, parts = [0], ("upload",)
    return Entry(torch.tensor(places, dtype=torch.int64), parts, torch.tensor(keep))


class Case:
    """Vectors of n clients and their shares, a model, who is present, and one more upload."""

    def __init__(
        self, seed, n, slots=8, size=300, present=None, *, dtype=torch.float32, whole=False
    ):
        rng = np.random.default_rng(seed)

        def draw(*shape, dtype=dtype):
            drawn = rng.integers(-3, 4, size=shape) if whole else rng.normal(size=shape)
            return torch.from_numpy(drawn).to(dtype)

        self.dtype = dtype
        self.rows = draw(n, slots, size)
        self.shares = draw(n, slots, dtype=torch.float64)
        self.weights = draw(size)
        self.present = torch.ones(n, dtype=torch.bool) if present is None else present
        client, staleness = torch.tensor(int(rng.integers(n))), torch.tensor(0)
        self.arrival = Arrival(client, staleness, draw(size), draw(size))
        self.entry, self.keep = usual_entry(slots), torch.tensor(True)

    def spoil_absent(self, garbage):
        """Put something into the rows of everybody absent, but for the client that uploads."""
        others = torch.arange(len(self.rows)) != self.arrival.client
        self.rows[~self.present & others] = garbage
        return self

    def memory(self):
        """A fresh one: operations write into it."""
        n, slots, size = self.rows.shape
        tiles = as_tiles(self.rows.flatten(0, 1), num_tiles(size))
        gram, along = products_of(self.rows, self.weights)
        return Memory(
            tiles.reshape(len(tiles), n, slots, WIDTH).contiguous(),
            torch.arange(n) % 3 > 0,
            torch.from_numpy(gram),
            torch.from_numpy(along),
            torch.tensor(-1.0, dtype=torch.float64),  # no operation needs to know
        )

    def selection(self, rule):
        return Selection(self.shares, self.present, *rule(self.present.sum()))

    def step(self, version, rule=MEDIAN):
        given = (self.memory(), self.arrival, self.entry, self.keep, self.weights)
        return version.order_step(*given, self.selection(rule))

    def store_upload(self, version):
        given = (self.memory(), self.arrival, self.entry, self.weights, self.keep)
        return version.store_upload(*given)

    def differences(self, version):
        return torch.stack(version.tiled_secant_products(self.memory(), self.arrival)[1:])

    def renewed(self):
        """All vectors once the upload is in."""
        rows, client = self.rows.clone(), int(self.arrival.client)
        if not self.keep:
            return rows
        mine, gradient, base = self.rows[client], self.arrival.gradient, self.arrival.base
        parts = {"upload": gradient, "step": base - mine[BASE], "change": gradient - mine[GRADIENT]}
        if self.entry.keep:
            for place, part in zip(self.entry.places.tolist(), self.entry.parts, strict=True):
                rows[client, OWN + place] = parts[part]
        rows[client, GRADIENT], rows[client, BASE] = gradient, base
        return rows

    def check_step(self, version, rule=MEDIAN, expected=None):
        """Direction, its inner products and the memory are the plain version's, up to rounding."""
        step, memory = self.step(version, rule)
        expected, plain = expected or self.step(reference, rule)
        self._check_memory(memory, plain)
        assert step.direction.dtype == self.dtype
        assert step.direction.shape == self.weights.shape
        assert torch.isfinite(step.direction).all()
        scale = self._scale()
        self._near(step.direction, expected.direction, scale)
        room = self.renewed().double().abs() @ scale
        assert step.along.shape == self.shares.shape
        assert not step.along[:, GRADIENT].any()
        told = self.present[:, None] & torch.isfinite(expected.along)
        self._near(step.along[told], expected.along[told], room[told])
        self._near(step.with_model, expected.with_model, self.weights.double().abs() @ scale)
        self._near(step.squared, expected.squared, scale @ scale)
        apart = self.arrival.gradient.double().norm() + scale.norm()
        self._near(step.distance, expected.distance, apart)
        exact = (step.along, step.with_model, step.squared, step.distance)
        assert all(numbers.dtype == torch.float64 for numbers in exact)

    def check_exchange(self, version):
        """The memory after an upload is the plain version's, up to rounding."""
        self._check_memory(self.store_upload(version), self.store_upload(reference))

    def _check_memory(self, memory, plain):
        """Vectors bit for bit; inner products up to rounding, other clients' untouched."""
        assert same_bits(memory.vectors, plain.vectors)
        assert torch.equal(memory.known, plain.known)
        client, before = int(self.arrival.client), self.memory()
        others = torch.arange(len(self.rows)) != client
        assert same_bits(memory.gram[others], before.gram[others])
        assert same_bits(memory.along[others], before.along[others])
        rows = self.renewed()[client].double().abs()
        model = self.weights.double().abs()
        self._near(memory.gram[client], plain.gram[client], rows @ rows.T)
        self._near(memory.along[client], plain.along[client], rows @ model)
        self._near(memory.squared, plain.squared, model @ model)

    def _near(self, found, expected, scale):
        error = (found.double() - expected.double()).abs()
        assert (error <= TOLERANCE[self.dtype] * scale).all(), float((error / scale).max())

    def _scale(self):
        """Largest sum of absolute values behind any client's number, per coordinate."""
        rows, shares = self.renewed()[self.present].double().abs(), self.shares[self.present]
        rows[:, BASE] += self.weights.double().abs()
        return torch.einsum("nsd,ns->nd", rows, shares.abs()).amax(dim=0)


def products_of(rows, weights):
    """Inner products as `core.types.Inner` describes them, by NumPy in float64."""
    rows, weights = rows.double().numpy(), weights.double().numpy()
    upload = np.arange(rows.shape[1]) == GRADIENT
    with np.errstate(all="ignore"):  # rows may be spoilt
        gram = np.where(upload[:, None] ^ upload, 0, rows @ rows.transpose(0, 2, 1))
        return gram, np.where(upload, 0, rows @ weights)


def same_bits(one, other):
    """Also where they are not numbers."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))
