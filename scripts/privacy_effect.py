"""What clipping and noise on the clients' side do to learning and to the filter: a table.

python scripts/privacy_effect.py [--rounds 600] [--noise 0,0.5,2,8] [--unit example] [--seed 1]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from secureafl import from_mapping
from secureafl.core.events import Event
from secureafl.runs.summary import summarise
from secureafl.simulation.simulator import Simulation
from secureafl.toml import read_toml

ROOT = Path(__file__).parents[1]
DEFENSES, ATTACKS = ("async_sgd", "secure_afl"), ("none", "sign_flip")


def privacies(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """None at all, then clipping alone or with more and more noise."""
    yield {}
    for noise in given.noise.split(","):
        yield {"clip": given.clip, "noise": float(noise), "unit": given.unit}


def line(given: argparse.Namespace, attack: str, defense: str, privacy: dict[str, Any]) -> str:
    """One run as a row of the table."""
    values = read_toml(ROOT / "experiments" / "quick.toml")
    values |= {"rounds": given.rounds, "seed": given.seed, "attack": attack, "defense": defense}
    values["evaluation"] = {"every": given.rounds, "late": 3}
    values["training"] |= {"privacy": privacy}
    made = from_mapping({**values, "device": given.device, "threads": given.threads})
    run = Simulation(made)
    events: list[Event] = [event for events in run.turns() for event in events]
    found = summarise(events, made.evaluation.late_rounds(made.rounds))
    shares = [_percent(found["uploads"][who]["share"]) for who in ("honest", "malicious")]
    spent = run.privacy
    epsilon = "-" if spent is None else "∞" if spent["epsilon"] is None else spent["epsilon"]
    noise = privacy.get("noise", "off")
    ter = found["metrics"]["ter"]["late_mean"]
    return f"| {defense} | {attack} | {noise} | {epsilon} | {' | '.join(shares)} | {ter:.3f} |"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def main() -> None:
    """Run everything and print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--noise", default="0,0.5,2,8")
    parser.add_argument("--unit", choices=("example", "upload"), default="example")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print("| defence | attack | noise | epsilon | honest accepted | malicious accepted | TER |")
    print("|---|---|---|---|---|---|---|")
    for attack in ATTACKS:
        for defense in DEFENSES:
            for privacy in privacies(given):
                print(line(given, attack, defense, privacy), flush=True)


if __name__ == "__main__":
    main()
