"""A table over seeds from the run folders of a sweep, in Markdown.

python scripts/seeds_table.py FOLDER --across async_sgd,secure_afl
python scripts/seeds_table.py FOLDER --names
"""

import argparse
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from result_tables import paper, read

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


def across(found: Groups, defenses: list[str]) -> list[str]:
    """A row for each attack, a column for each defence; the paper's figure in brackets."""
    lines = ["| attack | " + " | ".join(defenses) + " |", "|---" * (1 + len(defenses)) + "|"]
    for attack in dict.fromkeys(attack for _, attack in found):
        cells = [with_paper(found, defense, attack) for defense in defenses]
        lines.append("| " + " | ".join([attack, *cells]) + " |")
    return lines


def with_paper(found: Groups, defense: str, attack: str) -> str:
    """One cell, with the paper's figure in brackets where there is one."""
    told, figures = figures_of(found, defense, attack), paper(defense, attack)
    return told if figures == "-" else f"{told} ({figures})"


def figures_of(found: Groups, name: str, attack: str) -> str:
    """One cell: every metric over seeds."""
    results = found.get((name, attack), [])
    metrics = results[0]["metrics"] if results else ["ter"]
    return " / ".join(spread([r["metrics"][m]["late_mean"] for r in results]) for m in metrics)


def down(found: Groups) -> list[str]:
    """A row for each name, a column for each attack."""
    names, attacks = ({key[place]: None for key in found} for place in (0, 1))
    lines = ["| | " + " | ".join(attacks) + " |", "|---" * (1 + len(attacks)) + "|"]
    for name in sorted(names, key=_numbers_as_such):
        cells = [figures_of(found, name, attack) for attack in attacks]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _numbers_as_such(name: str) -> list[Any]:
    """So that 5 comes before 20."""
    parts = re.split(r"(\d+\.?\d*)", name)
    return [float(part) if number % 2 else part for number, part in enumerate(parts)]


def accepted(results: list[dict[str, Any]], group: str) -> str:
    """Share of the uploads of honest or malicious clients that were taken, mean over seeds."""
    shares = [r["uploads"][group]["share"] for r in results]
    return "-" if None in shares else f"{statistics.mean(shares):.0%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--across", default="", help="rows are attacks, columns these defences")
    kind.add_argument("--names", action="store_true", help="rows are how folders' names begin")
    given = parser.parse_args()
    found = groups(given.folder, given.names)
    print("\n".join(down(found) if given.names else across(found, given.across.split(","))))


if __name__ == "__main__":
    main()
