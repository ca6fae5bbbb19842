"""The recorded engine without a GPU: what is recorded runs again at each call, on the CPU."""

import contextlib

import pytest
import torch

from secureafl.runtime.attackers import Attackers
from secureafl.simulation import replayed
from secureafl.simulation.cuda_graph import fewer_operations
from secureafl.simulation.simulator import Simulation


class _Recorded:
    """As `cuda_graph.Recorded`, but what that records is called anew."""

    def __init__(self, function, stream, changed=(), others=()):
        self._given, self._function = (function, list(changed), torch.device("cpu")), None

    def __call__(self):
        if self._function is None:
            self._function = fewer_operations(*self._given)
        return self._function()


class _Reading:
    """As `cuda_graph.Reading`: numbers are under way for two looks after they are expected."""

    def __init__(self, stream):
        self._looks, self._values = 0, None

    def write(self, values):
        self._values = values.clone()

    def expect(self):
        self._looks = 2

    @property
    def under_way(self):
        self._looks -= 1
        return self._looks >= 0

    def read(self):
        return self._values.tolist()


class _Stream:
    """As one of CUDA's."""

    def wait_stream(self, other):
        """Nothing is ever under way."""


@contextlib.contextmanager
def recorded_engine():
    """Simulations made inside record their rounds, whatever their device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayed, "Recorded", _Recorded)
        patch.setattr(replayed, "Reading", _Reading)
        for name in ("Stream", "default_stream"):
            patch.setattr(torch.cuda, name, _Stream)
        patch.setattr(torch.cuda, "set_stream", lambda stream: None)
        patch.setattr(replayed.gc, "collect", lambda: 0)  # slow, and there are no recordings
        patch.setattr(Simulation, "_can_record", lambda self: True)
        patch.setattr(Attackers, "_in_place", True)
        yield
