"""Write docs/results/first-run.md from the run folders that scripts/first_run.sh leaves.

python scripts/first_run_page.py OUT > docs/results/first-run.md
"""

import sys
from pathlib import Path

from result_tables import made_with, paper, row, table

ATTACKS = ("none", "label_flip", "sign_flip", "gaussian", "scaling")
DEFENSES = ("async_sgd", "secure_afl")


def main() -> None:
    """Print the page."""
    out = Path(sys.argv[1])
    cells = [
        (out / "table" / f"{defense}-{attack}", attack, paper(defense, attack))
        for attack in ATTACKS
        for defense in DEFENSES
    ]
    grouped = [
        (out / "grouped" / f"{d}-sign_flip", "sign_flip, grouped", paper(d, "sign_flip"))
        for d in DEFENSES
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
