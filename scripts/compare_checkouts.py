"""Whether two checkouts compute the same bits: every defence in five settings, on the CPU.

    python scripts/compare_checkouts.py OLD NEW [--rounds 150]

A setting is a model (the paper's CNN, a small network with batch normalisation, or one of wider
linear layers), an attack, an arrival model and a seed. Each checkout runs in processes of its own,
with its own code. A line per run gives the checksum of the final model and of what became of every
upload; the command fails if any two differ. Defences that only one of the checkouts has are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SETTINGS = (
    ("cnn", "sign_flip", "uniform", 5),
    ("small", "none", "uniform", 6),
    ("small", "min_max", "event_driven", 7),
    ("small", "label_flip", "uniform", 8),
    ("wide", "sign_flip", "uniform", 9),
)
RUN = """
import hashlib, json, sys
from dataclasses import dataclass, replace
import torch
from secureafl import ArrivalEvent, Classification, from_mapping, from_tensors
from secureafl.defenses import DEFENSES
from secureafl.simulation.simulator import Simulation

@dataclass(frozen=True)
class Small(Classification):
    def load(self):
        inputs = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
        samples = inputs, (inputs[:, :3].argmax(dim=1))
        return from_tensors(samples, samples, "noise")

    def model(self):
        parts = torch.nn.Linear(8, 9), torch.nn.BatchNorm1d(9), torch.nn.ReLU()
        return torch.nn.Sequential(*parts, torch.nn.Linear(9, 3))

@dataclass(frozen=True)
class Wide(Classification):
    def load(self):
        inputs = torch.randn(600, 64, generator=torch.Generator().manual_seed(1))
        samples = inputs, (inputs[:, :10].argmax(dim=1))
        return from_tensors(samples, samples, "noise")

    def model(self):
        parts = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        return torch.nn.Sequential(*parts)

tasks = {"small": Small(), "wide": Wide()}
rounds, settings = int(sys.argv[1]), json.loads(sys.argv[2])
for defense in DEFENSES:
    for model, attack, arrivals, seed in settings:
        values = {"rounds": rounds, "clients": 12, "malicious": 3, "seed": seed, "threads": 1}
        values["task"] = {"kind": "fashion_mnist", "data_dir": "embedded"}
        parts = {"arrivals": arrivals, "attack": attack, "defense": defense}
        parts["evaluation"] = {"every": rounds, "late": 1}
        made = from_mapping({**values, **parts})
        simulation = Simulation(replace(made, task=tasks.get(model, made.task)))
        events = [event for turn in simulation.turns() for event in turn]
        fates = [tuple(e)[:7] for e in events if isinstance(e, ArrivalEvent)]
        weights = hashlib.sha256(simulation.weights.numpy().tobytes()).hexdigest()[:16]
        fate = hashlib.sha256(repr(fates).encode()).hexdigest()[:16]
        name = [defense, model, attack, arrivals, str(seed)]
        print(json.dumps([" ".join(name), weights, fate]), flush=True)
"""


def checksums(checkout: Path, rounds: int) -> dict[str, tuple[str, str]]:
    """The checksums of model and uploads' fates, by defence and setting."""
    command = [sys.executable, "-c", RUN, str(rounds), json.dumps(SETTINGS)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (model, fate) for name, model, fate in rows}


def main() -> None:
    """Run both checkouts and print a line for each pair of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=150)
    given = parser.parse_args()
    old, new = (checksums(path, given.rounds) for path in (given.old, given.new))
    both = sorted(old.keys() & new.keys())
    for cell in both:
        print("same " if old[cell] == new[cell] else "OTHER", cell, *new[cell])
    for cell in sorted(old.keys() ^ new.keys()):
        print("only in one checkout:", cell)
    if any(old[cell] != new[cell] for cell in both):
        sys.exit("the checkouts do not compute the same bits")


if __name__ == "__main__":
    main()
