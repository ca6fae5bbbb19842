"""Run folders as lines of Markdown, for the scripts that write pages of docs/results."""

import json
from pathlib import Path
from typing import Any

from secureafl.paper.tables import main_table

HEAD = ("defence", "attack", "TER (/ ASR), late mean ± std", "last", "paper", "honest accepted")
COLUMNS = (*HEAD, "malicious accepted", "model steps")


def paper(defense: str, attack: str, task: str = "fashion_mnist") -> str:
    """The paper's figures: TER (or RMSE), or TER / ASR; a dash where it has none."""
    figures = main_table(task).get(defense, {}).get(attack, {})
    return " / ".join(f"{figure:.2f}" for figure in figures.values()) or "-"


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
    return "| " + " | ".join([*cells, f"{result['steps']:,}"]) + " |"


def table(title: str, rows: list[str]) -> str:
    """A table with its heading."""
    head = "| " + " | ".join(COLUMNS) + " |"
    return "\n".join([f"## {title}", "", head, "|---" * len(COLUMNS) + "|", *rows, ""])


def made_with(runs: list[Path]) -> str:
    """Hardware, versions and dates of all sessions."""
    told = [read(run, "provenance.json") for run in runs]
    sessions = [session for one in told for session in one["sessions"]]
    days = sorted({s["started"][:10] for s in sessions})
    devices = sorted({s["device"] for s in sessions})
    torches = sorted({s["torch"] for s in sessions})
    seeds = sorted({one["seed"] for one in told})
    drawn = f"Seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    places = f"{', '.join(devices)}; torch {', '.join(torches)}; {', '.join(days)}"
    return f"{drawn}; {places}; {told[0]['data']}."
