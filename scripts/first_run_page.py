"""Write docs/results/first-run.md from the run folders that scripts/first_run.sh leaves.

python scripts/first_run_page.py OUT > docs/results/first-run.md
"""

import sys
from pathlib import Path

from result_tables import made_with, row, table

# Table of the paper for Fashion-MNIST: TER, or TER / ASR.
PAPER = {
    "async_sgd": {
        "none": "0.12",
        "label_flip": "0.12",
        "sign_flip": "0.41",
        "gaussian": "0.52",
        "scaling": "0.41 / 0.69",
    },
    "secure_afl": {
        "none": "0.12",
        "label_flip": "0.12",
        "sign_flip": "0.13",
        "gaussian": "0.14",
        "scaling": "0.18 / 0.07",
    },
}


def main() -> None:
    """Print the page."""
    out = Path(sys.argv[1])
    attacks, defenses = list(PAPER["async_sgd"]), list(PAPER)
    cells = [
        (out / "table" / f"{defense}-{attack}", attack, PAPER[defense][attack])
        for attack in attacks
        for defense in defenses
    ]
    grouped = [
        (out / "grouped" / f"{d}-sign_flip", "sign_flip, grouped", PAPER[d]["sign_flip"])
        for d in defenses
    ]
    estimators = [
        (path, f"none, estimator {name}", "-")
        for name, path in (
            ("lbfgs", out / "table" / "secure_afl-none"),
            ("last_update", out / "last_update" / "secure_afl-none"),
            ("history_mean", out / "history_mean" / "secure_afl-none"),
        )
    ]
    text = Path(__file__).with_name("first_run_text.md").read_text(encoding="utf-8")
    made = made_with([path for path, *_ in cells + grouped + estimators])
    tables = [
        table("The table", [row(*cell) for cell in cells]),
        table("Malicious clients that fill whole label groups", [row(*cell) for cell in grouped]),
        table("Estimators, without attack", [row(*cell) for cell in estimators]),
    ]
    print(text.replace("MADE", made).replace("TABLES", "\n".join(tables)), end="")


if __name__ == "__main__":
    main()
