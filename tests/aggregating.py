"""Crowds of updates to try aggregators on, and calling them."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from secureafl.core.rules import apply_rule

GARBAGE = 1e30  # what absent rows hold; larger than anything that may arrive


class Crowd(NamedTuple):
    """Updates of all clients; only the rows present count."""

    values: np.ndarray
    present: np.ndarray

    @property
    def rows(self):
        """The updates that count."""
        return self.values[self.present]

    @property
    def size(self):
        """The scale of what counts."""
        return float(np.abs(self.rows).max())


@st.composite
def crowds(draw, most=14, dims=(1, 3, 8), kinds=("plain", "ties", "twins", "huge", "tiny")):
    """Clients with a common direction; some tie, coincide, or are huge; absent rows are garbage."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = draw(st.integers(1, most)), draw(st.sampled_from(dims))
    values = rng.normal(size=size) + rng.normal(size=(count, size))
    kind = draw(st.sampled_from(kinds))
    if kind == "ties":
        values = np.round(values)
    if kind == "twins":
        values = values[rng.integers(max(1, count // 2), size=count)]
    values *= {"huge": 1e18, "tiny": 1e-25}.get(kind, 1)
    present = rng.random(count) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    present[rng.integers(count)] = True
    values[~present] = GARBAGE * rng.choice([-1, 1], size=(int((~present).sum()), size))
    return Crowd(values, present)


def aggregated(rule, values, present, root_data=None, calls=1, dtype=torch.float64):
    """The result of the last of several equal calls; arrays in, an array out."""
    values = torch.as_tensor(np.asarray(values)).to(dtype)
    present = torch.as_tensor(np.asarray(present))
    root_data = torch.as_tensor(np.asarray(root_data)).to(dtype) if root_data is not None else None
    state = rule.init(len(values), values[0])
    for _ in range(calls):
        vector, state = apply_rule(rule, state, values, present, root_data)
    return vector.numpy()


def assert_close(found, expected, crowd, tolerance=1e-9):
    """Equal up to rounding, measured by the crowd's scale."""
    np.testing.assert_allclose(
        np.asarray(found), expected, rtol=tolerance, atol=tolerance * crowd.size
    )


def everybody(count):
    """All are present."""
    return np.ones(count, dtype=bool)


def with_outliers(honest=16, outliers=4, size=12, distance=1e3, seed=0):
    """Honest rows of length about 1 around a common direction, then colluding ones far away."""
    rng = np.random.default_rng(seed)
    crowd = rng.normal(size=size) + 0.3 * rng.normal(size=(honest, size))
    bad = -distance * np.ones(size) + 1e-3 * rng.normal(size=(outliers, size))
    return np.concatenate([crowd, bad])
