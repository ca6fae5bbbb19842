"""Uploads fed to an estimator as the defence does it, and the estimates its shares stand for."""

import torch

from secureafl.core.types import Arrival, Inner
from secureafl.kernels.memory import no_memory
from secureafl.kernels.operations import store_upload, tiled_secant_products
from secureafl.kernels.tiles import combine


def fed(estimator, num_clients, uploads, weights):
    """Memory and notes after (client, gradient, base, keep) came in, the model being `weights`."""
    memory = no_memory(num_clients, 2 + estimator.slots, weights)
    notes = estimator.init(num_clients, weights)
    for client, gradient, base, keep in uploads:
        arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, base)
        keep = torch.tensor(keep)
        entry, notes = estimator.observe(
            notes, tiled_secant_products(memory, arrival), arrival, keep
        )
        memory = store_upload(memory, arrival, entry, weights, keep)
    return memory, notes


def shares(estimator, memory, notes, weights):
    """The estimator's shares; `weights` is the model that `memory` was fed with."""
    return estimator.shares(notes, Inner(memory.gram, memory.along, memory.squared))


def estimated(estimator, memory, notes, weights):
    """One row per client, in the dtype of `weights`."""
    found = shares(estimator, memory, notes, weights)
    return combine(memory.vectors, found.to(weights.dtype), weights)
