"""The server's own clean samples, for the defences that need some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from secureafl.core.errors import require
from secureafl.core.random import numpy_generator
from secureafl.core.traits import has_trait
from secureafl.runtime.clients import Clients

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.experiment import Experiment


class RootDataset:
    """Copies of some training samples: clients hold them too, but no attack changes these."""

    def __init__(self, clients: Clients, rows: Tensor) -> None:
        """Copy the rows."""
        data = clients.data
        inputs, self.labels = data.train_inputs[rows], data.train_labels[rows]
        own = data._replace(
            train_inputs=inputs,
            train_labels=self.labels,
            test_inputs=inputs,
            test_labels=self.labels,
        )
        self._samples = Clients(clients.task, own, clients.model, clients.training)
        self._all = torch.arange(len(rows), device=rows.device)

    def gradient(
        self, weights: Float[Tensor, " d"], rows: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " d"]:
        """What a client would upload that holds all samples, or these."""
        rows = self._all if rows is None else rows
        # As many local steps as a client takes, each on the same samples.
        return self._samples.update(weights, rows.repeat(self._samples.training.local_steps))

    def outputs(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "samples classes"]:
        """What the model says to each sample."""
        return self._samples.test_outputs(weights)


def root_data_for(experiment: Experiment, clients: Clients) -> RootDataset | None:
    """Those of an experiment whose defence needs some."""
    if not has_trait(experiment.defense, "needs_root_data"):
        return None
    return draw_root_data(clients, experiment.root_samples, experiment.seed)


def draw_root_data(clients: Clients, count: int, seed: int) -> RootDataset:
    """`count` training samples drawn uniformly, none of them twice."""
    total = len(clients.data.train_labels)
    remedy = f"the task has {total} training samples; give at most as many"
    require(count <= total, "root_samples", count, remedy)
    rows = numpy_generator(seed, "trusted").choice(total, count, replace=False)
    device = clients.data.train_labels.device
    return RootDataset(clients, torch.from_numpy(rows).to(device))
