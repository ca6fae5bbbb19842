"""Rounds a second of a small model on one CPU core, and what they are spent on.

    python scripts/time_small_rounds.py [--defenses async_sgd secure_afl] [--rounds 2000]
        [--attack none]

Handwritten digits (scikit-learn's), a network of 4,810 parameters, 10 clients, one thread. Times
are of the processor, so that other programs disturb them less; the best of several blocks counts.
A gradient by plain autograd, in the same process, is the unit that machines can be compared by.
"""

import argparse
import cProfile
import hashlib
import pstats
import time
from dataclasses import dataclass, replace

import torch
from sklearn.datasets import load_digits
from torch import nn

from secureafl import Classification, Data, from_mapping, from_tensors
from secureafl.simulation.simulator import Simulation

TRAINING, BLOCK = 1500, 200  # samples; rounds
# Where a profile says the time goes: part of the path, and the function.
SHARES = {
    "client gradient": ("runtime/clients.py", "gradient"),
    "defence": ("/defenses/", "step"),
    "evaluation": ("runtime/events.py", "evaluation_event"),
}


@dataclass(frozen=True)
class Digits(Classification):
    """Images of 8 x 8, ten classes."""

    def load(self) -> Data:
        """The first samples are for training."""
        inputs, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
        samples = inputs.float() / 16, labels.long()
        train, test = (tuple(s[part] for s in samples) for part in _PARTS)
        return from_tensors(train, test, "digits of scikit-learn")  # pyrefly: ignore

    def model(self) -> nn.Module:
        """One hidden layer."""
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


_PARTS = slice(TRAINING), slice(TRAINING, None)


def simulation(defense: str, attack: str, rounds: int) -> Simulation:
    """A run of so many rounds."""
    values = {"defense": defense, "attack": attack, "clients": 10, "threads": 1, "device": "cpu"}
    made = from_mapping(values | {"rounds": rounds, "training": {"learning_rate": 0.1}})
    return Simulation(replace(made, task=Digits()))


def advance(run: Simulation, rounds: int) -> float:
    """Seconds of the processor for so many rounds."""
    start, turns = time.process_time(), run.turns()
    for _ in range(rounds):
        next(turns)
    return time.process_time() - start


def autograd_seconds(run: Simulation) -> float:
    """Seconds for one gradient of the model by autograd, without anything around it."""
    clients, rows = run.clients, torch.arange(run.experiment.training.batch_size)
    inputs, labels = clients.batch(rows)
    parameters, times = [*clients.model.parameters()], []
    for _ in range(20):
        start = time.process_time()
        for _ in range(20):
            loss = clients.task.loss(clients.model(inputs), labels)
            torch.autograd.grad(loss, parameters)
        times.append((time.process_time() - start) / 20)
    return min(times)


def shares(run: Simulation, rounds: int) -> str:
    """What a profile says of so many rounds."""
    with cProfile.Profile() as profile:
        advance(run, rounds)
    stats = pstats.Stats(profile)
    total = stats.total_tt  # pyrefly: ignore
    said = []
    for name, (path, function) in SHARES.items():
        took = sum(
            cumulative
            for (file, _, called), (_, _, _, cumulative, _) in stats.stats.items()  # pyrefly: ignore
            if path in file and called == function
        )
        said.append(f"{name} {took / total:.0%}")
    return ", ".join(said)


def main() -> None:
    """Time every defence and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--defenses", nargs="+", default=["async_sgd", "trust_clipping"])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--attack", default="none")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for defense in given.defenses:
        run = simulation(defense, given.attack, given.rounds + 3 * BLOCK)
        advance(run, BLOCK)  # kernels get compiled, tapes written
        best = min(advance(run, BLOCK) for _ in range(given.rounds // BLOCK)) / BLOCK
        model = hashlib.sha256(run.weights.numpy().tobytes()).hexdigest()[:12]
        unit, spent = autograd_seconds(run), shares(run, BLOCK)
        print(f"{defense}: {1 / best:.0f} rounds a second, {best / unit:.2f} gradients a round")
        print(f"  in a profile: {spent}; model {model} after {run.round - BLOCK} rounds")


if __name__ == "__main__":
    main()
