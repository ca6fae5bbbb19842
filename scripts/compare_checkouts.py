"""Whether two checkouts compute the same bits: every defence under two attacks, on the CPU.

    python scripts/compare_checkouts.py OLD NEW [--rounds 150]

Each checkout runs in processes of its own, with its own code. A line per run gives the checksum of
the final model and of what became of every upload; the command fails if any two differ. Defences
that only one of the checkouts has are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ATTACKS = ("sign_flip", "scaling")
RUN = """
import hashlib, json, sys
from secureafl import ArrivalEvent, from_mapping
from secureafl.defenses import DEFENSES
from secureafl.simulation.simulator import Simulation

rounds, attacks = int(sys.argv[1]), sys.argv[2].split(",")
for defense in DEFENSES:
    for attack in attacks:
        task = {"kind": "fashion_mnist", "data_dir": "embedded"}
        values = {"rounds": rounds, "clients": 12, "malicious": 3, "seed": 5, "threads": 1}
        parts = {"task": task, "attack": attack, "defense": defense}
        parts["evaluation"] = {"every": rounds, "late": 1}
        simulation = Simulation(from_mapping({**values, **parts}))
        events = [event for turn in simulation.turns() for event in turn]
        fates = [tuple(e)[:7] for e in events if isinstance(e, ArrivalEvent)]
        model = hashlib.sha256(simulation.weights.numpy().tobytes()).hexdigest()[:16]
        fate = hashlib.sha256(repr(fates).encode()).hexdigest()[:16]
        print(json.dumps([defense, attack, model, fate]), flush=True)
"""


def checksums(checkout: Path, rounds: int) -> dict[tuple[str, str], tuple[str, str]]:
    """The checksums of model and uploads' fates, by defence and attack."""
    command = [sys.executable, "-c", RUN, str(rounds), ",".join(ATTACKS)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(defense, attack): (model, fate) for defense, attack, model, fate in rows}


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
        print("same " if old[cell] == new[cell] else "OTHER", *cell, *new[cell])
    for cell in sorted(old.keys() ^ new.keys()):
        print("only in one checkout:", *cell)
    if any(old[cell] != new[cell] for cell in both):
        sys.exit("the checkouts do not compute the same bits")


if __name__ == "__main__":
    main()
