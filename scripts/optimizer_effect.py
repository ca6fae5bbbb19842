"""What the server's optimiser does to training with many local steps and old models: a table.

Four clients with equal shares of the embedded Fashion-MNIST, 20 local steps at rate 0.05, models up
to ten rounds old; a network of one hidden layer, so that it takes minutes on one core.

python scripts/optimizer_effect.py [--rounds 40] [--staleness 10] [--seeds 0,1] [--attack none]
    [--defenses async_sgd,trust_clipping]
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

from torch import nn

from secureafl import EvaluationEvent, from_mapping, simulate
from secureafl.tasks import FashionMnist

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd, rate 1", {"kind": "sgd"}),
    ("sgd, rate 0.5", {"kind": "sgd", "learning_rate": 0.5}),
    ("sgd, rate 0.25", {"kind": "sgd", "learning_rate": 0.25}),
    ("sgd, rate 0.1", {"kind": "sgd", "learning_rate": 0.1}),
    ("sgd, rate 0.05, momentum 0.8", {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.8}),
    ("adagrad, rate 0.01", {"kind": "adagrad", "learning_rate": 0.01}),
    ("adam, rate 0.001", {"kind": "adam", "learning_rate": 0.001}),
    ("adam, rate 0.003", {"kind": "adam", "learning_rate": 0.003}),
    ("yogi, rate 0.001", {"kind": "yogi", "learning_rate": 0.001}),
]


@dataclasses.dataclass(frozen=True)
class SmallNetwork(FashionMnist):
    """The task's samples with a network whose gradient takes a millisecond."""

    data_dir: str = "embedded"

    def model(self) -> nn.Module:
        """One hidden layer."""
        layers = (nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        return nn.Sequential(nn.Flatten(), *layers)


def errors(given: argparse.Namespace, defense: str, optimizer: dict[str, Any], seed: int) -> Any:
    """The test errors over the second half of a run."""
    values = {
        "seed": seed,
        "rounds": given.rounds,
        "clients": 4,
        "malicious": 1,
        "device": "cpu",
        "threads": 1,
        "partition": "iid",
        "arrivals": {"kind": "uniform", "max_staleness": given.staleness},
        "training": {"learning_rate": 0.05, "local_steps": 20},
        "evaluation": {"every": 2, "late": 1},
        "attack": given.attack,
        "defense": defense,
        "server_optimizer": optimizer,
    }
    made = dataclasses.replace(from_mapping(values), task=SmallNetwork())
    found = [event for event in simulate(made) if isinstance(event, EvaluationEvent)]
    return [event.metrics["ter"] for event in found if event.round >= given.rounds // 2]


def lines(given: argparse.Namespace) -> Iterator[str]:
    """The table, row by row: mean and largest error over the second half of all seeds' runs."""
    defenses, seeds = given.defenses.split(","), [int(seed) for seed in given.seeds.split(",")]
    yield f"| server optimiser | {' | '.join(defenses)} |"
    yield "|---|" + "---|" * len(defenses)
    for name, optimizer in OPTIMIZERS:
        cells = []
        for defense in defenses:
            found = [e for seed in seeds for e in errors(given, defense, optimizer, seed)]
            cells.append(f"{statistics.fmean(found):.3f}, at most {max(found):.3f}")
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--staleness", type=int, default=10)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--attack", default="none")
    parser.add_argument("--defenses", default="async_sgd,secure_afl,trust_clipping")
    for line in lines(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
