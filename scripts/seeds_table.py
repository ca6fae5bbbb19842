"""A table over seeds from the run folders of a sweep, beside the paper's figures, in Markdown.

python scripts/seeds_table.py docs/results/robustness/attacks [--paper secure_afl]
python scripts/seeds_table.py FOLDER --across async_sgd,secure_afl
python scripts/seeds_table.py FOLDER --names
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from result_tables import paper, read

COLUMNS = ("defence", "attack", "seeds", "TER", "ASR", "paper", "honest accepted", "malicious")


Groups = dict[tuple[str, str], list[dict[str, Any]]]


def groups(folder: Path, names: bool = False) -> Groups:
    """Results of the runs in a folder, by defence, or what its name begins with, and attack."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*/result.json")):
        result = read(path.parent, "result.json")
        end = f"-{result['attack']}-seed{result['seed']}"
        name = path.parent.name.removesuffix(end) if names else result["defense"]
        found[name, result["attack"]].append(result)
    return found


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def line(defense: str, attack: str, results: list[dict[str, Any]], beside: str) -> str:
    """One row."""
    ter, asr = (
        spread([r["metrics"][name]["late_mean"] for r in results if name in r["metrics"]])
        for name in ("ter", "asr")
    )
    seeds = ", ".join(str(r["seed"]) for r in results)
    shares = [_accepted(results, group) for group in ("honest", "malicious")]
    figures = paper(beside or defense, attack)
    return "| " + " | ".join([defense, attack, seeds, ter, asr, figures, *shares]) + " |"


def across(found: Groups, defenses: list[str]) -> list[str]:
    """A row for each attack, a column for each defence; the paper's figure in brackets."""
    lines = ["| attack | " + " | ".join(defenses) + " |", "|---" * (1 + len(defenses)) + "|"]
    for attack in dict.fromkeys(attack for _, attack in found):
        cells = []
        for defense in defenses:
            told, figures = figures_of(found, defense, attack), paper(defense, attack)
            cells.append(told if figures == "-" else f"{told} ({figures})")
        lines.append("| " + " | ".join([attack, *cells]) + " |")
    return lines


def figures_of(found: Groups, name: str, attack: str) -> str:
    """One cell: every metric over seeds."""
    results = found.get((name, attack), [])
    metrics = results[0]["metrics"] if results else ["ter"]
    return " / ".join(spread([r["metrics"][m]["late_mean"] for r in results]) for m in metrics)


def down(found: Groups) -> list[str]:
    """A row for each name, a column for each attack."""
    names, attacks = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    lines = ["| | " + " | ".join(attacks) + " |", "|---" * (1 + len(attacks)) + "|"]
    for name in names:
        cells = [figures_of(found, name, attack) for attack in attacks]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _accepted(results: list[dict[str, Any]], group: str) -> str:
    shares = [r["uploads"][group]["share"] for r in results]
    return "-" if None in shares else f"{statistics.mean(shares):.0%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--paper", default="", help="the defence whose figures stand beside")
    parser.add_argument("--across", default="", help="defences, a column each")
    parser.add_argument(
        "--names", action="store_true", help="rows by what folders' names begin with"
    )
    given = parser.parse_args()
    if given.names:
        print("\n".join(down(groups(given.folder, names=True))))
        return
    if given.across:
        print("\n".join(across(groups(given.folder), given.across.split(","))))
        return
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for (defense, attack), results in groups(given.folder).items():
        print(line(defense, attack, results, given.paper))


if __name__ == "__main__":
    main()
