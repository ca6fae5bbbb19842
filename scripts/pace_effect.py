"""What one malicious client can do by being fast, and by coming first: a table.

One of 4 and of 10 clients uploads 1, 20 and 60 times as often as the others, the first two times
before anybody else. The others upload equally often in every run. Each error is compared with that
of two runs of the same seed: one in which that client is as fast but honest, and one without it.
Embedded Fashion-MNIST, a network of one hidden layer.

python scripts/pace_effect.py run RESULTS.csv [--seeds 0,1,2] [--uploads 1080]
python scripts/pace_effect.py table RESULTS.csv

A run goes on with what is in the file.
"""

import argparse
import csv
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from optimizer_effect import SmallNetwork
from torch import Tensor, nn

from secureafl import (
    Arrival,
    Attack,
    AttackContext,
    AttackerView,
    EvaluationEvent,
    from_mapping,
    simulate,
)
from secureafl.attacks import Adaptive, Composed, Gaussian, LabelFlip, MinMax, Scaling, SignFlip

CLIENTS, PACES = (4, 10), (1, 20, 60)
GOAL = 0.05  # that an error may be above the one without the malicious client
HONEST_MEMBER, ABSENT = "honest", "absent"  # what runs are compared with


@dataclasses.dataclass(frozen=True)
class TinyNetwork(SmallNetwork):
    """A network whose gradient takes less than a millisecond."""

    def model(self) -> nn.Module:
        """One hidden layer."""
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


@dataclasses.dataclass(frozen=True)
class OwnGradient:
    """An honest client, but as fast as a malicious one."""

    knows = "own"

    def init(self, context: AttackContext) -> tuple[()]:
        """Nothing to remember."""
        return ()

    def poison_batch(
        self, state: tuple[()], inputs: Tensor, labels: Tensor, attacker_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The samples as they are."""
        return inputs, labels

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Tensor, tuple[()]]:
        """What it has trained."""
        return arrival.gradient, state


@dataclasses.dataclass(frozen=True)
class Blast(OwnGradient):
    """An upload that is long, then as long as a server takes."""

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Tensor, tuple[()]]:
        """Along the client's own gradient, upwards."""
        length = 50.0 if view.round == 0 else 9.9e17
        return -length * arrival.gradient / arrival.gradient.norm(), state


@dataclasses.dataclass(frozen=True)
class NotANumber(OwnGradient):
    """Uploads without a number."""

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Tensor, tuple[()]]:
        """Nothing but NaN."""
        return torch.full_like(arrival.gradient, torch.nan), state


@dataclasses.dataclass(frozen=True)
class PullToZero(OwnGradient):
    """One such step, were it taken whole, would leave no model."""

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Tensor, tuple[()]]:
        """Towards weights of zero."""
        return arrival.base / view.learning_rate, state


ATTACKS: dict[str, Attack] = {
    "norm 50, then 1e18": Blast(),
    "NaN": NotANumber(),
    "own gradient reversed": SignFlip(factor=1.0),
    "pull to zero": PullToZero(),
    "gaussian": Gaussian(),
    "min_max": MinMax(),
    "adaptive": Adaptive(),
    "composed: own and against the mean": Composed(cover="own", share=0.8),
    "label_flip": LabelFlip(),
    "scaling (backdoor)": Scaling(),
}


class Cell(NamedTuple):
    """One run."""

    clients: int
    pace: int
    attack: str  # or one of the two that runs are compared with
    seed: int


def cells(seeds: list[int]) -> Iterator[Cell]:
    """All runs; those of one seed together."""
    for seed, clients in itertools.product(seeds, CLIENTS):
        yield Cell(clients, 1, ABSENT, seed)
        for pace, attack in itertools.product(PACES, (HONEST_MEMBER, *ATTACKS)):
            yield Cell(clients, pace, attack, seed)


def error(cell: Cell, uploads: int) -> float:
    """The mean test error over the last fifth of a run, in which the others upload so often."""
    others, absent = cell.clients - 1, cell.attack == ABSENT
    rounds = uploads if absent else uploads * (others + cell.pace) // others
    attack = ATTACKS.get(cell.attack, OwnGradient())
    values = {
        "seed": cell.seed,
        "rounds": rounds,
        "clients": cell.clients - absent,
        "malicious": int(not absent),
        "device": "cpu",
        "threads": 1,
        "arrivals": {"kind": "uniform", "malicious_pace": float(cell.pace), "malicious_first": 2},
        "training": {"learning_rate": 0.02},
        "evaluation": {"every": max(1, rounds // 15), "late": 1},
    }
    made = dataclasses.replace(from_mapping(values), task=TinyNetwork(), attack=attack)
    found = (event for event in simulate(made) if isinstance(event, EvaluationEvent))
    late = (event for event in found if event.round >= 0.8 * rounds)
    return statistics.fmean(event.metrics["ter"] or 0.0 for event in late)


def read(path: Path) -> dict[Cell, float]:
    """The errors that are known."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        Cell(int(r["clients"]), int(r["pace"]), r["attack"], int(r["seed"])): float(r["ter"])
        for r in rows
    }


def run(path: Path, seeds: list[int], uploads: int) -> None:
    """Compute what is missing, and add each error to the file as soon as it is known."""
    known = read(path)
    if not known:
        path.write_text(",".join((*Cell._fields, "ter")) + "\n")
    for cell in cells(seeds):
        if cell not in known:
            found = f"{error(cell, uploads):.4f}"
            with path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow([*cell, found])


def table(path: Path) -> Iterator[str]:
    """A row per attack: mean over seeds above the honest member's run, above the absent one's."""
    known = read(path)
    columns = list(itertools.product(CLIENTS, PACES))
    yield "| attack | " + " | ".join(f"1 of {n}, {p} x" for n, p in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for name in (ABSENT, HONEST_MEMBER):
        numbers = ((n, 1 if name == ABSENT else p) for n, p in columns)
        means = (_mean(e for c, e in known.items() if c[:3] == (n, p, name)) for n, p in numbers)
        yield f"| {name}: error | {' | '.join(means)} |"
    above = {cell: _above(known, cell) for cell in known if cell.attack in ATTACKS}
    for attack in ATTACKS:
        found = ([a for c, a in above.items() if c[:3] == (n, p, attack)] for n, p in columns)
        yield f"| {attack} | {' | '.join(map(_entry, found))} |"
    honest, absent = (sum(a[i] > GOAL for a in above.values()) for i in (0, 1))
    yield ""
    yield f"Of {len(above)} single runs {honest} and {absent} are more than {GOAL} above."


def _mean(errors: Iterable[float]) -> str:
    found = list(errors)
    return f"{statistics.fmean(found):.3f}" if found else "not run"


def _above(known: dict[Cell, float], cell: Cell) -> tuple[float, float]:
    """How far the error of a run is above that of the honest member, and without it."""
    honest = known[cell._replace(attack=HONEST_MEMBER)]
    absent = known[cell._replace(attack=ABSENT, pace=1)]
    return known[cell] - honest, known[cell] - absent


def _entry(above: list[tuple[float, float]]) -> str:
    """Both means over seeds; bold what is too much."""
    if not above:
        return "not run"
    means = [statistics.fmean(values) for values in zip(*above, strict=True)]
    return ", ".join(f"**{mean:+.3f}**" if mean > GOAL else f"{mean:+.3f}" for mean in means)


def main() -> None:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--uploads", type=int, default=1080, help="of all others together")
    given = parser.parse_args()
    if given.what == "run":
        run(given.results, [int(seed) for seed in given.seeds.split(",")], given.uploads)
    else:
        print("\n".join(table(given.results)))


if __name__ == "__main__":
    main()
