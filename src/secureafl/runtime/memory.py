"""The memory that a simulation will take, estimated before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from secureafl.core.memory import free_memory, in_words, require_memory
from secureafl.core.trees import name_tensors
from secureafl.runtime.batches import ROWS

if TYPE_CHECKING:
    from jaxtyping import Int

    from secureafl.core.protocols import Attack, Defense, ServerOptimizer
    from secureafl.experiment import Experiment

_WORKING = 6  # vectors of the model's size: weights, gradient, update, step, and room to compute
_SCHEDULED = 64  # bytes of a round: who uploads, when and on which model, and room to draw it
_LITTLE = 1 << 18  # numbers, a vector for each client: so small a state may be made for real


class MemoryEstimate(NamedTuple):
    """Bytes, by what they are for; activations of a batch come on top."""

    server: int  # what the defence remembers
    models: int  # those that clients still train on, the optimiser's, and some to compute with
    attack: int = 0  # the clients' gradients that malicious ones may know

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)

    def __str__(self) -> str:
        """For people."""
        server, models = in_words(self.server), in_words(self.models)
        attack = f", the attack {in_words(self.attack)}" if self.attack else ""
        return f"{in_words(self.total)} (the defence {server}, models {models}{attack})"


def estimate_memory(
    defense: Defense,
    clients: int,
    size: int,
    versions: Int[np.ndarray, " rounds"],
    optimizer: ServerOptimizer | None = None,
    attack: Attack | None = None,
) -> MemoryEstimate:
    """Estimate what a run takes besides its data.

    Args:
        defense: The rule, whose state is made without its values unless it is small.
        clients: Their number.
        size: Length of the model's flat vector.
        versions: The model that each upload answers to, in the order of the uploads.
        optimizer: The server's, if it has one; its state is made likewise.
        attack: The malicious clients', which may know gradients of others.
    """
    # The first tensor without values costs a second, in which torch loads parts of its compiler.
    device = "cpu" if clients * size <= _LITTLE else "meta"
    vector, weights = 4 * size, torch.zeros(size, device=device)
    server = _state_bytes(lambda: defense.init(clients, weights), vector)
    moments = _state_bytes(lambda: optimizer.init(weights), vector) if optimizer else 0
    known = clients * vector if attack and attack.knows != "own" else 0
    return MemoryEstimate(server, moments + vector * (_most_lent(versions) + _WORKING), known)


def _state_bytes(make: Callable[[], Any], otherwise: int) -> int:
    """What a state takes; `otherwise` where its rule looks at values, of which there are none."""
    try:
        with torch.random.fork_rng(devices=[]):  # rules may draw, and this one is thrown away
            return sum(tensor.nbytes for tensor in name_tensors(make(), "").values())
    except (NotImplementedError, RuntimeError):
        return otherwise


def _most_lent(versions: np.ndarray) -> int:
    """How many models are waited for at once, at most."""
    rounds = len(versions)
    last = np.full(rounds + 1, -1)
    np.maximum.at(last, versions, np.arange(rounds))
    lent = np.flatnonzero(last >= 0)
    change = np.zeros(rounds + 2, int)
    np.add.at(change, lent, 1)
    np.add.at(change, last[lent] + 1, -1)
    return int(change.cumsum().max())


def refuse_too_long(experiment: Experiment) -> None:
    """Raise if a run's schedule would not fit into the machine's memory: it is drawn first."""
    samples = experiment.training.samples
    wanted = experiment.rounds * (_SCHEDULED + (samples + ROWS) * 8 + samples * 4)
    remedy = "give fewer rounds, or smaller batches"
    require_memory(wanted, free_memory(), f"rounds = {experiment.rounds}: the schedule", remedy)


def refuse_too_large(estimate: MemoryEstimate, device: torch.device) -> None:
    """Raise if a run would not fit where it is to compute."""
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else free_memory()
    words = "the defence with its clients", "the model", "what the attack knows of the clients"
    _, what = max(zip(estimate, words, strict=True))
    remedy = "give fewer clients, a smaller model, or a defence that remembers less"
    if what == words[-1]:
        remedy = "give fewer clients, a smaller model, or an attack that knows less"
    require_memory(estimate.total, free, what, remedy)
