"""Write docs/results/first-run.md from the run folders that scripts/first_run.sh leaves.

python scripts/first_run_page.py OUT > docs/results/first-run.md
"""

import json
import sys
from pathlib import Path
from typing import Any

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


def read(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run folder."""
    return json.loads((path / name).read_text(encoding="utf-8"))


def row(path: Path, what: str, paper: str) -> str:
    """One line of a table."""
    result = read(path, "result.json")
    late = [f"{m['late_mean']:.3f} ± {m['late_std']:.3f}" for m in result["metrics"].values()]
    last = [f"{m['last']:.3f}" for m in result["metrics"].values()]
    shares = [result["uploads"][group]["share"] for group in ("honest", "malicious")]
    accepted = ["-" if share is None else f"{share:.1%}" for share in shares]
    cells = [result["defense"], what, " / ".join(late), " / ".join(last), paper, *accepted]
    return "| " + " | ".join(cells) + " |"


def table(title: str, rows: list[str]) -> str:
    """A table with its heading."""
    head = "| defence | attack | TER (/ ASR), late mean ± std | last | paper | honest accepted |"
    return "\n".join(
        [f"## {title}", "", head + " malicious accepted |", "|---" * 7 + "|", *rows, ""]
    )


def made_with(runs: list[Path]) -> str:
    """Hardware, versions and dates of all sessions."""
    sessions = [s for run in runs for s in read(run, "provenance.json")["sessions"]]
    days = sorted({s["started"][:10] for s in sessions})
    devices = sorted({s["device"] for s in sessions})
    torches = sorted({s["torch"] for s in sessions})
    data = read(runs[0], "provenance.json")
    seed = data["seed"]
    return (
        f"Seed {seed}; {', '.join(devices)}; torch {', '.join(torches)}; {', '.join(days)}; "
        f"{data['data']}."
    )


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
