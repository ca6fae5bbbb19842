"""Write docs/results/defences.md from the run folders its command leaves.

python scripts/defences_page.py runs/defences > docs/results/defences.md
"""

import sys
from pathlib import Path

from result_tables import made_with, row, table

ATTACKS = ("none", "sign_flip", "gaussian", "scaling")
# Tables of the paper for Fashion-MNIST: TER, or TER / ASR. It has no figures for the others.
PAPER = {
    "aflguard": ("0.22", "0.34", "0.26", "0.28 / 0.36"),
    "async_defender": ("0.24", "0.33", "0.31", "0.38 / 0.44"),
    "async_sgd": ("0.12", "0.41", "0.52", "0.41 / 0.69"),
    "basgd": ("0.14", "0.18", "0.73", "0.36 / 0.77"),
    "catalyst": ("-", "-", "-", "-"),
    "fed_async": ("-", "-", "-", "-"),
    "fed_buff": ("-", "-", "-", "-"),
    "kardam": ("0.17", "0.18", "0.15", "0.79 / 0.92"),
    "sageflow": ("0.14", "0.16", "0.90", "0.70 / 0.85"),
    "secure_afl": ("0.12", "0.13", "0.14", "0.18 / 0.07"),
    "zeno_pp": ("0.17", "0.19", "0.17", "0.21 / 0.24"),
}
TITLES = ("No attack", "Sign flip", "Gaussian noise", "Scaled backdoor")


def main() -> None:
    """Print the page."""
    out = Path(sys.argv[1])
    tables = []
    for number, (attack, title) in enumerate(zip(ATTACKS, TITLES, strict=True)):
        rows = [row(out / f"{d}-{attack}", attack, paper[number]) for d, paper in PAPER.items()]
        tables.append(table(title, rows))
    text = Path(__file__).with_name("defences_text.md").read_text(encoding="utf-8")
    made = made_with([out / f"{defense}-{attack}" for defense in PAPER for attack in ATTACKS])
    print(text.replace("MADE", made).replace("TABLES", "\n".join(tables)), end="")


if __name__ == "__main__":
    main()
