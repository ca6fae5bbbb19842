"""Write docs/results/tasks.md from the run folders its commands leave.

python scripts/tasks_page.py runs/tasks > docs/results/tasks.md
"""

import sys
from pathlib import Path

from result_tables import made_with, paper
from seeds_table import Groups, figures_of, groups

from secureafl.paper.tables import tasks
from secureafl.reproduce.artefacts import BESIDE

DEFENSES = ("async_sgd", "secure_afl", "secure_afl_hardened")
ATTACKS = ("none", "sign_flip")


def rows(task: str, found: Groups) -> list[str]:
    """A line for each attack, the paper's figures in brackets."""
    lines = []
    for attack in ATTACKS:
        cells = [
            f"{figures_of(found, name, attack)} ({paper(BESIDE.get(name, name), attack, task)})"
            for name in DEFENSES
        ]
        result = found["async_sgd", attack][0]
        told = [task, f"{result['rounds']:,}", attack, *cells]
        lines.append("| " + " | ".join(told) + " |")
    return lines


def main() -> None:
    """Print the page."""
    folder = Path(sys.argv[1])
    ran = [task for task in tasks() if (folder / task).is_dir()]
    head = ["task", "rounds", "attack", *DEFENSES]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for task in ran:
        lines += rows(task, groups(folder / task))
    made = [f"- {task}: {made_with(_runs(folder / task))}" for task in ran]
    text = Path(__file__).with_name("tasks_text.md").read_text(encoding="utf-8")
    print(text.replace("MADE", "\n".join(made)).replace("TABLE", "\n".join(lines)), end="")


def _runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/result.json"))


if __name__ == "__main__":
    main()
