"""Write docs/results/defences.md from the run folders its command leaves.

python scripts/defences_page.py runs/defences > docs/results/defences.md
"""

import sys
from pathlib import Path

from result_tables import made_with, paper, row, table

from secureafl.defenses import DEFENSES

ATTACKS = ("none", "sign_flip", "gaussian", "scaling")
TITLES = ("No attack", "Sign flip", "Gaussian noise", "Scaled backdoor")


def main() -> None:
    """Print the page."""
    out = Path(sys.argv[1])
    ran = [name for name in sorted(DEFENSES) if (out / f"{name}-none").exists()]
    tables = []
    for attack, title in zip(ATTACKS, TITLES, strict=True):
        rows = [row(out / f"{d}-{attack}", attack, paper(d, attack)) for d in ran]
        tables.append(table(title, rows))
    text = Path(__file__).with_name("defences_text.md").read_text(encoding="utf-8")
    made = made_with([out / f"{defense}-{attack}" for defense in ran for attack in ATTACKS])
    print(text.replace("MADE", made).replace("TABLES", "\n".join(tables)), end="")


if __name__ == "__main__":
    main()
