"""The page of a search for the worst attack: what was found, by which parts, who was trusted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from secureafl.core.errors import RunError
from secureafl.presentation.style import BLUE, GREEN, VERMILLION
from secureafl.report.artefact import MARKDOWN
from secureafl.report.drawing import FAR, Picture, is_narrow, render_both
from secureafl.report.export import Table, texts
from secureafl.report.formatting import in_markdown_table, number
from secureafl.report.tables import read_runs
from secureafl.report.trust import trust
from secureafl.report.writing import PAGE, fill, save
from secureafl.runs.find import search
from secureafl.runs.layout import read_json
from secureafl.runs.origin import origin_of
from secureafl.toml import on_one_line

_ATTACKS = 12  # lines of the table of attacks


def read_outcome(outcome: Path, trials: Path) -> dict[str, Any]:
    """What a search found and what it tried, from its two files."""
    return {
        **_read(outcome, ("worst", "without_attack", "plan")),
        **_read(trials, ("trials", "by_attack", "by_part")),
    }


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    found = read_json(path)
    missing = [key for key in keys if key not in found]
    if missing:
        raise RunError(f"{path}: is not of a search; it lacks '{missing[0]}'")
    return found


def headline(outcome: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    plan, worst = outcome["plan"], outcome["worst"]
    seeds = len(worst["held_out"]["seeds"])
    found = f"{outcome['metric'].upper()} {score(worst['held_out']['mean'])}"
    clean = score(outcome["without_attack"]["mean"])
    return (
        f"{plan['base']['defense']['kind']}, malicious {plan['base']['malicious']}: worst "
        f"{found} by {worst['attack']['kind']}, mean over {seeds} held-out "
        f"{'seed' if seeds == 1 else 'seeds'}; error without attack {clean}."
    )


def write_redteam(outcome: Mapping[str, Any], folder: Path, out: Path) -> Path:
    """Write `index.html`, `index.md` and the figures into `out`; returns the page's path.

    `folder` is that of the search: the runs of its worst attack are read there.
    """
    (run,) = read_runs([folder / outcome["worst"]["run"]])
    curve, trust_map = over_budget(outcome), trust(run, 1)
    finalists = [t for t in outcome["trials"] if t["held_out"]["mean"] is not None]
    finalists.sort(key=lambda t: -_height(t["held_out"]["mean"]))
    attacks = outcome["by_attack"][:_ATTACKS]
    tables = _tables(outcome, finalists, attacks)
    values = {
        "headline": headline(outcome),
        "outcome": outcome,
        "finalists": finalists,
        "attacks": attacks,
        "tables": tables,
        "run": run,
        "curve": curve,
        "trust_map": trust_map,
        "origin": origin_of(search(folder / "runs").runs),
    }
    pictures = [curve, *([trust_map] if trust_map else [])]
    filters = {"score": score, "on_one_line": on_one_line, "plain": in_markdown_table}
    pages = {PAGE: "redteam.html", MARKDOWN: "redteam.md"}
    made = {file: fill(template, filters, values) for file, template in pages.items()}
    save(out, made, pictures, list(tables.values()))
    return out / PAGE


def _tables(
    outcome: Mapping[str, Any],
    finalists: Sequence[Mapping[str, Any]],
    attacks: Sequence[Mapping[str, Any]],
) -> dict[str, Table]:
    """The page's tables by their names; those without a line are left out."""
    attack, means = outcome["worst"]["attack"], ["tried", "mean", "highest"]
    settings = [(name, str(value)) for name, value in attack.items()]
    parts = [
        (part["part"], str(line["value"]), *(line[name] for name in means))
        for part in outcome["by_part"]
        for line in part["values"]
    ]
    by_attack = [(str(line["value"]), *(line[name] for name in means)) for line in attacks]
    short = f"Means of {outcome['metric'].upper()} over short runs"
    by_part = f"{short}, by part of {attack['kind']}"
    found = [
        texts("worst", "The worst attack found", ["setting", "value"], settings),
        _held_out_table(outcome, finalists),
        texts("attacks", f"{short}, by attack", ["attack", *means], by_attack),
        texts("parts", by_part, ["part", "value", *means], parts),
    ]
    return {table.name: table for table in found if table.rows}


def _held_out_table(outcome: Mapping[str, Any], finalists: Sequence[Mapping[str, Any]]) -> Table:
    metric, seeds = outcome["metric"].upper(), list(map(str, outcome["plan"]["held_out"]))
    lines = [("none: error", outcome["without_attack"])]
    lines += [(f"{on_one_line(t['attack'])}: {metric}", t["held_out"]) for t in finalists]
    if outcome["metric"] == "asr":
        lines.append(("the worst of them: error", outcome["worst"]["error"]))
    rows = [(name, f["mean"], *(f["seeds"][seed] for seed in seeds)) for name, f in lines]
    head = ["attack", "mean", *(f"seed {seed}" for seed in seeds)]
    return texts("finalists", "Full length, held-out seeds", head, rows)


def score(value: float | str | None) -> str:
    """A score as text; it may be the word `diverged`."""
    return value if isinstance(value, str) else number(value)


def over_budget(outcome: Mapping[str, Any]) -> Picture:
    """Draw the worst score so far over the attacks tried, and what is left on held-out seeds."""
    metric, on_error = outcome["metric"].upper(), outcome["metric"] != "asr"
    dotted = "Dotted: the error of full runs without attack. " if on_error else ""
    return Picture(
        "budget.svg",
        f"Worst {metric} against budget",
        "Points: each attack in its short run, on the search's own seed. Line: the worst so far. "
        f"Dashed: the result, the worst mean of full runs on held-out seeds. {dotted}"
        "Short runs end earlier, so their level is not the result's.",
        f"The worst {metric} found over {len(outcome['trials'])} attacks tried.",
        *render_both(4.0, lambda figure: draw_curve(figure, outcome)),
    )


def draw_curve(figure: Figure, outcome: Mapping[str, Any]) -> None:
    """Draw what `over_budget` shows into a figure."""
    axis = figure.add_subplot()
    tried = [
        (t["number"], _height(t["short"])) for t in outcome["trials"] if t["short"] is not None
    ]
    numbers, scores = [n for n, _ in tried], [s for _, s in tried]
    axis.plot(numbers, scores, "o", color=BLUE, markersize=3, alpha=0.5, label="one attack")
    worst = list(itertools.accumulate(scores, max))
    axis.step(numbers, worst, where="post", color=BLUE, label="worst so far")
    found = _height(outcome["worst"]["held_out"]["mean"])
    axis.axhline(found, color=VERMILLION, linestyle="--", label="worst on held-out seeds")
    clean = outcome["without_attack"]["mean"]
    if clean is not None and outcome["metric"] != "asr":
        axis.axhline(_height(clean), color=GREEN, linestyle=":", label="error without attack")
    if FAR in [*scores, found]:  # what diverged is cut off, or the others would be one line
        axis.set_ylim(top=1.1 * max((s for s in scores if s < FAR), default=1.0))
    axis.xaxis.set_major_locator(MaxNLocator(4 if is_narrow(figure) else 8, integer=True))
    axis.set_xlabel("attacks tried")
    axis.set_ylabel(outcome["metric"].upper())
    axis.legend(loc="best")


def _height(value: float | str) -> float:
    """A score as a number; what diverged is at the top."""
    return FAR if isinstance(value, str) else min(value, FAR)
