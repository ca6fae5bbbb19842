"""Uploads fed to an estimator as the defence does it, and the estimates its shares stand for."""

import torch

from secureafl.core.types import Arrival, Inner, Mine
from secureafl.core.vectors import row
from secureafl.kernels.memory import no_memory, recall, remember
from secureafl.kernels.tiles import BASE, GRADIENT, combine


def fed(estimator, num_clients, uploads, weights):
    """Memory and notes after (client, gradient, base, keep) came in, the model being `weights`."""
    memory = no_memory(num_clients, 2 + estimator.slots, weights)
    notes = estimator.init(num_clients, weights)
    for client, gradient, base, keep in uploads:
        arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, base)
        keep = torch.tensor(keep)
        mine = recalled(memory, arrival)
        vectors, notes = estimator.remember(notes, mine, arrival, keep)
        rows = torch.cat([gradient[None], base[None], vectors])
        memory = remember(memory, arrival.client, rows, weights, keep)
    return memory, notes


def recalled(memory, arrival):
    """What an estimator is shown of the arrival's client."""
    rows = recall(memory, arrival.client, arrival.gradient.numel())
    return Mine(row(memory.known, arrival.client), rows[GRADIENT], rows[BASE], rows[2:])


def shares(estimator, memory, notes, weights):
    """The estimator's shares; `weights` is the model that `memory` was fed with."""
    squared = weights.double() @ weights.double()
    return estimator.shares(notes, Inner(memory.gram, memory.along, squared))


def estimated(estimator, memory, notes, weights):
    """One row per client, in the dtype of `weights`."""
    found = shares(estimator, memory, notes, weights)
    return combine(memory.vectors, found.to(weights.dtype), weights)
