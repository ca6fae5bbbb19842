"""Write docs/results/attacks.md from the run folders its command leaves.

python scripts/attacks_page.py runs/attacks > docs/results/attacks.md
"""

import sys
from pathlib import Path

from result_tables import made_with
from seeds_table import Groups, accepted, figures_of, groups, with_paper

from secureafl.sweep.grid import read_grid

GRID = Path(__file__).parents[1] / "experiments/attacks.toml"
DEFENSES = ("async_sgd", "secure_afl", "secure_afl_hardened")
PRESETS = {
    "": "As strong as in the paper",
    "stealth": "Stealth",
    "other": "Other strengths",
}


def preset_of(attack: str) -> str:
    """Under which heading an attack stands."""
    preset = attack.partition("@")[2]
    return preset if preset in PRESETS else "other"


def table(found: Groups, attacks: list[str]) -> list[str]:
    """What attacks do to each defence, and how many malicious uploads ours take."""
    head = ["attack", *DEFENSES, *(f"malicious accepted, {defense}" for defense in DEFENSES[1:])]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for attack in attacks:
        cells = [with_paper(found, defense, attack) for defense in DEFENSES[:2]]
        cells.append(figures_of(found, DEFENSES[2], attack))
        cells += [accepted(found[defense, attack], "malicious") for defense in DEFENSES[1:]]
        lines.append("| " + " | ".join([attack, *cells]) + " |")
    return [*lines, ""]


def main() -> None:
    """Print the page."""
    folder = Path(sys.argv[1])
    found, grid = groups(folder), read_grid(GRID)
    attacks = list(grid.axes["attack"])
    parts = []
    for preset, title in PRESETS.items():
        parts += [f"## {title}", ""]
        parts += table(found, [attack for attack in attacks if preset_of(attack) == preset])
    cells = [folder / name for name in grid.cells()]
    text = Path(__file__).with_name("attacks_text.md").read_text(encoding="utf-8")
    print(text.replace("MADE", made_with(cells)).replace("TABLES", "\n".join(parts)), end="")


if __name__ == "__main__":
    main()
