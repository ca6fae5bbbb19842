"""A deployment's run again, in the simulator: the same arrivals give the same bits.

That holds where clients trained on the shares that the experiment deals out, without noise of
their own. Who arrived when, on which model, and who was refused is read from events.jsonl.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from secureafl.arrivals.trace import Trace
from secureafl.core.events import ArrivalEvent
from secureafl.deployment.messages import REFUSALS
from secureafl.deployment.trainer import make_attackers, uploaded
from secureafl.runs.events import read_events
from secureafl.runtime.batches import ROWS, own_batch
from secureafl.simulation.run import stored_experiment
from secureafl.simulation.simulator import Simulation

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.protocols import Attack


class Replay(Simulation):
    """The simulator, with the schedule that a run folder of a deployment holds."""

    def __init__(self, path: Path, attack: Attack | None = None) -> None:
        """`attack` is what the malicious clients played, if not the experiment's own."""
        self._arrivals = [e for e in read_events(path) if isinstance(e, ArrivalEvent)]
        made = stored_experiment(path)
        rounds = len(self._arrivals)
        super().__init__(
            dataclasses.replace(made, rounds=rounds, attack=attack or made.attack, attack_until=0)
        )
        self._attackers = make_attackers(self.experiment, self.shards, self.clients)
        self._attackers.malicious[:] = False
        self._attackers.malicious[[e.client for e in self._arrivals if e.malicious]] = True

    def _draw_trace(self) -> Trace:
        client = np.array([e.client for e in self._arrivals])
        now = np.arange(len(client))
        staleness = np.array([e.staleness for e in self._arrivals])
        return Trace(client, now - staleness, now.astype(float))

    def _draw_rows(self) -> np.ndarray:
        made, pairs = self.experiment, zip(self.trace.client, self.trace.version, strict=True)
        shards, count = self.shards.rows, made.training.samples
        return np.stack([own_batch(shards[c], count, made.seed, c, v) for c, v in pairs])

    def _update(self, client: int, version: int) -> Tensor:
        """What the client sent; no numbers where it was refused, which the server refuses too."""
        base = self._state.ledger.look_up(version)
        assert base is not None, "the trace and the ledger disagree"
        self._engine.begin(self.round, base)
        if self._arrivals[self.round].reason in REFUSALS:
            return base[:0]
        rows = self._jobs[self.round, ROWS:].cpu().numpy()
        return uploaded(self.clients, self._attackers, base, rows, client, version)
