"""The leaderboard is made of outcomes; what does not belong there is refused."""

import copy
import json
from pathlib import Path

import pytest
from redteam.small import pretend, tiny_plan

from secureafl.core.errors import RunError
from secureafl.defenses import DEFENSES
from secureafl.experiment import Experiment
from secureafl.redteam.entries import _plan, read_entries
from secureafl.redteam.plan import Plan
from secureafl.report.export import as_csv, as_markdown
from secureafl.report.leaderboard import describe, list_commands, make_leaderboard, make_searches

RAW = Path(__file__).parents[2] / "docs/results/raw/redteam"


def outcome(defense, share, scores=(0.4, 0.5, 0.6), budget=200, against="error"):
    """An outcome as a search writes it."""
    base = Experiment(defense=DEFENSES[defense](), malicious=share)
    plan = Plan(base, budget, against)
    seeds = {str(seed): score for seed, score in zip(plan.held_out, scores, strict=True)}
    diverged = "diverged" in scores
    attack = {"kind": "composed", "aim": "std", "share": 0.5899, "period": 20}
    figures = {"mean": "diverged" if diverged else sum(scores) / 3, "seeds": seeds}
    return {
        "command": plan.command,
        "metric": "ter",
        "without_attack": {"mean": 0.12, "seeds": {"101": 0.11, "102": 0.12, "103": 0.13}},
        "worst": {
            "attack": attack,
            "held_out": figures,
            "command": plan.run_command(attack, 101),
        },
        "origin": {"days": ["2026-11-16"], "devices": ["NVIDIA H200"], "versions": ["torch 2"]},
        "plan": plan.portable(),
    }


def lines(table):
    """The rows of a table by their first cell."""
    rows = [row.strip("| ").split(" | ") for row in as_markdown(table).splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_every_defence_has_a_line_and_the_yardstick_the_first():
    found = list(lines(make_leaderboard([], DEFENSES, "error")))
    assert found[0] == "norm_clipping"
    assert sorted(found) == sorted(DEFENSES)


def test_cell_without_a_search_says_so():
    found = lines(make_leaderboard([outcome("kardam", 0.2)], DEFENSES, "error"))
    assert found["kardam"] == [
        "0.120 ± 0.010", "not searched yet", "0.500 ± 0.100 (200)", *["not searched yet"] * 2,
    ]  # fmt: skip
    assert found["async_sgd"] == ["not searched yet"] * 5


def test_of_several_searches_the_worst_counts_and_its_budget_is_told():
    found = [outcome("kardam", 0.1, budget=24), outcome("kardam", 0.1, (0.1, 0.2, 0.3))]
    assert lines(make_leaderboard(found, DEFENSES, "error"))["kardam"][1] == "0.500 ± 0.100 (24)"
    diverged = outcome("kardam", 0.1, ("diverged", 0.1, 0.1), budget=7)
    table = make_leaderboard([diverged, *found], DEFENSES, "error")
    assert lines(table)["kardam"][1] == "diverged (7)"


def test_csv_of_the_leaderboard_has_numbers():
    table = make_leaderboard([outcome("kardam", 0.1)], ["kardam"], "error")
    head, row = (line.split(",") for line in as_csv(table).splitlines())
    assert head[2:6] == ["10 % mean", "10 % std", "10 % budget", "20 % mean"]
    assert [float(cell) for cell in row[2:5]] == pytest.approx([0.5, 0.1, 200])
    assert row[5] == ""


def test_search_with_a_share_that_has_no_column_is_refused():
    """It would be left out of the leaderboard without a word."""
    with pytest.raises(RunError, match=r"kardam against error has 25 % .* leave its file out"):
        make_leaderboard([outcome("kardam", 0.25)], DEFENSES, "asr")


def test_errors_and_success_rates_are_apart():
    found = [outcome("kardam", 0.4, against="asr")]
    assert lines(make_leaderboard(found, DEFENSES, "asr"))["kardam"][4] == "0.500 ± 0.100 (200)"
    assert lines(make_leaderboard(found, DEFENSES, "error"))["kardam"][4] == "not searched yet"


def test_defence_of_ones_own_comes_last():
    own = outcome("kardam", 0.2)
    own["plan"]["base"]["defense"]["kind"] = "my_defense:NormBound"
    assert list(lines(make_leaderboard([own], DEFENSES, "error")))[-1] == "my_defense:NormBound"


def test_searches_are_told_with_their_commands():
    kardam, clipping = outcome("kardam", 0.2, budget=24), outcome("norm_clipping", 0.4)
    first, second = lines(make_searches([kardam, clipping], DEFENSES)).items()
    assert (first[0], second[0]) == ("norm_clipping", "kardam")
    assert second[1] == [
        "20 %", "error", "0.500 ± 0.100", "101: 0.400, 102: 0.500, 103: 0.600", "0.120 ± 0.010",
        "composed: aim std, share 0.59, period 20", "24", "NVIDIA H200", "torch 2", "2026-11-16",
    ]  # fmt: skip
    text = list_commands([kardam, clipping], DEFENSES)
    for one in (kardam, clipping):
        assert f"\n{one['command']}\n{one['worst']['command']}\n" in text


def test_attack_is_described_in_a_few_words():
    assert describe({"kind": "label_flip"}) == "label_flip"
    assert describe({"kind": "x", "factor": 34.567, "twice": True}) == "x: factor 35, twice true"


def write(folder, one, name="one.json"):
    (folder / name).write_text(json.dumps(one))
    return folder / name


def test_entries_are_read_from_files_and_folders(tmp_path):
    one = outcome("kardam", 0.2)
    file = write(tmp_path, one)
    write(tmp_path, one, "two.json")
    assert read_entries([tmp_path, file]) == [one] * 3


def changed(path, value):
    """An outcome with one value changed."""
    one = copy.deepcopy(outcome("trust_clipping", 0.2))
    *above, last = path.split(".")
    inner = one
    for key in above:
        inner = inner[key]
    inner[last] = value
    return one


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("plan.base.rounds", 500, r"not in the paper's setting \(its rounds\)"),
        ("plan.base.malicious", 10, r"not in the paper's setting \(its malicious\)"),
        ("plan.base.defense.momentum", 0.5, r"\(its defense.momentum\)"),
        ("plan.base.defense.fading", 0.8, "cannot be asked for today .*fading.*; search again"),
        ("plan.base.defense.kind", "museum", "cannot be asked for today .*museum"),
        ("plan.held_out", [101, 102], "fewer than 3 held-out seeds"),
        ("plan.held_out", [101, 102, 102], "give each held-out seed once"),
        ("plan.against", "ASR", "against = 'ASR': choose one of 'error', 'asr'"),
        ("plan", {}, "cannot be asked for today"),
        ("plan", 3, "its 'plan' is missing"),
        ("command", None, "its 'command' is missing"),
        ("origin", {}, "its 'origin.devices' is missing"),
        ("worst", "alie", "its 'worst.command' is missing"),
        ("worst.attack", {}, "its 'worst.attack.kind' is missing"),
        ("worst.held_out", {}, "its 'worst.held_out' is missing"),
        ("worst.held_out.mean", None, "its 'worst.held_out' is missing, or not as a search"),
        ("worst.held_out.mean", 0.4, "its 'worst.held_out' is missing"),
        ("worst.held_out.seeds", {"101": 0.5, "102": 0.5}, "its 'worst.held_out' is missing"),
        ("worst.held_out.seeds.101", "0.4", "its 'worst.held_out' is missing"),
        ("worst.held_out.seeds.101", None, "its 'worst.held_out' is missing"),
        ("without_attack.seeds.103", "diverged", "its 'without_attack' is missing"),
        (
            "without_attack",
            {"mean": -1.0, "seeds": {"101": -1.0, "102": -1.0, "103": -1.0}},
            "its 'without_attack' is missing",
        ),
    ],
)
def test_what_does_not_belong_on_the_leaderboard_is_refused(tmp_path, path, value, said):
    write(tmp_path, changed(path, value))
    with pytest.raises(RunError, match=said):
        read_entries([tmp_path])


def test_search_in_another_setting_is_refused(tmp_path):
    pretend(tiny_plan(), tmp_path, lambda n, e: 0.5)
    with pytest.raises(RunError, match="not in the paper's setting"):
        read_entries([tmp_path / "redteam.json"])


def test_file_that_is_no_outcome_and_folder_without_any_are_refused(tmp_path):
    with pytest.raises(RunError, match="no outcome of a search in it"):
        read_entries([tmp_path])
    with pytest.raises(RunError, match="its 'command' is missing"):
        read_entries([write(tmp_path, {})])


@pytest.mark.parametrize("file", sorted(RAW.glob("*.json")), ids=lambda file: file.stem)
def test_kept_outcome_has_the_commands_that_make_it_again(file):
    one = json.loads(file.read_text())
    plan = _plan(one["plan"], file)
    assert one["command"] == plan.command
    assert one["worst"]["command"] == plan.run_command(one["worst"]["attack"], plan.held_out[0])
    kind = one["plan"]["base"]["defense"]["kind"]
    assert file.stem == f"{kind}-{plan.base.malicious}-{plan.against}"


def test_rows_and_columns_are_refused_for_searches(cli):
    message = cli.refused("table", RAW, "--show", "searches", "--rows", "attack")
    assert "--show searches: leave out --rows, --columns and --paper" in message
