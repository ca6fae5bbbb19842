import itertools
import json
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redteam.small import (
    BUDGET,
    engine_here,
    pretend,
    search_here,
    tiny_plan,
)
from simulation.small import tiny

import secureafl
from secureafl.cli.given import settings_given
from secureafl.cli.redteam import _bases
from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import EvaluationEvent
from secureafl.experiment import (
    Experiment,
    from_mapping,
    read_experiment,
    with_settings,
)
from secureafl.library.redteaming import search_all
from secureafl.redteam.effects import effects_of_attacks, effects_of_parts
from secureafl.redteam.plan import Plan
from secureafl.redteam.search import stages
from secureafl.redteam.space import Range, is_backdoor
from secureafl.settings import short_name
from secureafl.tasks import FashionMnist
from secureafl.toml import on_one_line

TESTS = Path(__file__).parents[1]


def kinds(stage):
    return [short_name(experiment.attack) for experiment in stage.cells.values()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    search_here(tiny_plan(), out)
    return out


def test_budget_is_the_number_of_attacks_tried(tmp_path):
    outcome, seen = pretend(tiny_plan(budget=10), tmp_path, lambda n, e: 0.5)
    short = [stage for stage in seen if "short" in stage.title]
    assert [len(stage.cells) for stage in short] == [4 + 1, 4, 2], "and one without an attack"
    assert len(outcome["trials"]) == 10
    assert [len(stage.cells) for stage in seen[3:]] == [4, 2 * (1 + 2)]


@pytest.mark.parametrize(("budget", "finalists"), [(1, 2), (30, 2), (36, 3), (64, 4), (200, 4)])
def test_small_budget_is_not_spent_on_finalists(budget, finalists):
    assert tiny_plan(budget=budget).finalists == finalists


def test_attacks_that_reach_full_length_are_named_with_their_settings(tmp_path):
    outcome, seen = pretend(tiny_plan(budget=10), tmp_path, lambda n, e: 0.5)
    title, *named = seen[-1].title.splitlines()
    finalists = [trial["attack"] for trial in outcome["trials"] if trial["held_out"]["seeds"]]
    assert title.endswith("seeds 101, 102:")
    assert len(named) == len(finalists) == 2
    assert sorted(named) == sorted(f"  0.500 {on_one_line(attack)}" for attack in finalists)


def test_attack_that_fails_in_its_longer_run_gets_no_further(tmp_path):
    def fails_later(number, experiment):
        kind = short_name(experiment.attack)
        if kind == "label_flip":
            return 0.6 if experiment.rounds == 8 else None  # worse than all others, in short runs
        return 0.3

    outcome, seen = pretend(tiny_plan(), tmp_path, fails_later)
    assert "label_flip" in kinds(seen[-2])
    assert "label_flip" not in kinds(seen[-1])
    assert outcome["worst"]["held_out"]["mean"] == 0.3


def test_ceiling_is_what_naming_the_most_common_label_gives():
    plan = tiny_plan()
    labels = plan.base.task.load().test_labels
    assert plan.ceiling == pytest.approx(1 - float(labels.bincount().max()) / len(labels), abs=0.01)
    assert tiny_plan(against="asr").ceiling == pytest.approx(1, abs=0.01)


def test_error_of_a_regression_has_no_ceiling():
    task = "reference.tiny_task:TinyRegression"
    assert math.isinf(tiny_plan(base={"task": task, "defense": "async_sgd"}).ceiling)


def test_rungs_are_a_quarter_and_a_half_of_the_full_length(tmp_path):
    _, seen = pretend(tiny_plan(base={"rounds": 80}), tmp_path, lambda n, e: 0.5)
    lengths = [{experiment.rounds for experiment in stage.cells.values()} for stage in seen]
    assert lengths == [{20}, {20}, {40}, {80}]


def test_short_runs_are_evaluated_late_only_and_full_ones_as_asked():
    plan = tiny_plan(base={"rounds": 80, "evaluation": {"every": 2, "late": 1}})
    short, full = plan.short({"kind": "none"}), plan.full({"kind": "none"}, 101)
    assert short.evaluation.rounds(short.rounds) == {0, 20}
    assert len(full.evaluation.rounds(full.rounds)) == 41


def test_held_out_seeds_are_used_for_the_score_alone(tmp_path):
    plan = tiny_plan(held_out=(7, 8), search_seed=3)
    _, seen = pretend(plan, tmp_path, lambda n, e: 0.5)
    seeds = [{experiment.seed for experiment in stage.cells.values()} for stage in seen]
    assert seeds == [{3}, {3}, {4}, {7, 8}]


def test_score_is_the_worst_mean_over_held_out_seeds_not_the_luckiest(tmp_path):
    def lucky_in_the_search(number, experiment):
        kind = short_name(experiment.attack)
        if experiment.seed < 100:
            return {"gaussian": 0.99, "sign_flip": 0.8, "label_flip": 0.7}.get(kind, 0.3)
        figures = {"gaussian": [0.2, 0.9, 0.1], "sign_flip": [0.5, 0.6, 0.7]}
        return figures.get(kind, [0.1, 0.2, 0.3])[experiment.seed - 101]

    plan = tiny_plan(budget=9, held_out=(101, 102, 103))
    outcome, seen = pretend(plan, tmp_path, lucky_in_the_search)
    assert outcome["worst"]["attack"]["kind"] == "sign_flip"
    assert outcome["worst"]["held_out"]["mean"] == pytest.approx(0.6)
    assert outcome["worst"]["held_out"]["seeds"] == {"101": 0.5, "102": 0.6, "103": 0.7}
    assert outcome["without_attack"]["mean"] == pytest.approx(0.2)
    assert set(kinds(seen[-2])) == {"none", "gaussian"}, "which promised most"


def test_attack_that_failed_is_passed_over(tmp_path):
    def fails(number, experiment):
        return None if short_name(experiment.attack) == "label_flip" else 0.4

    outcome, _ = pretend(tiny_plan(), tmp_path, fails)
    found = {trial["attack"]["kind"]: trial["short"] for trial in outcome["trials"]}
    assert found["label_flip"] is None
    assert outcome["worst"]["attack"]["kind"] != "label_flip"


def test_attack_without_one_of_its_held_out_runs_has_no_score(tmp_path):
    def one_missing(number, experiment):
        lost = short_name(experiment.attack) == "label_flip" and experiment.seed == 102
        return None if lost else 0.9 if short_name(experiment.attack) == "label_flip" else 0.4

    outcome, _ = pretend(tiny_plan(), tmp_path, one_missing)
    assert outcome["worst"]["held_out"]["mean"] == pytest.approx(0.4)


def test_outcome_tells_hardware_and_day_of_its_runs(tmp_path):
    outcome, _ = pretend(tiny_plan(), tmp_path, lambda n, e: 0.5)
    assert outcome["origin"]["devices"] == ["NVIDIA H200"]
    assert outcome["origin"]["days"] == ["2026-11-16"]


def test_run_that_diverged_is_the_worst(tmp_path):
    def diverges(number, experiment):
        return math.inf if short_name(experiment.attack) == "gaussian" else 0.9

    outcome, _ = pretend(tiny_plan(), tmp_path, diverges)
    assert outcome["worst"]["attack"]["kind"] == "gaussian"
    assert outcome["worst"]["held_out"]["mean"] == "diverged"


def test_search_for_a_success_rate_tries_backdoors_alone(tmp_path):
    outcome, seen = pretend(tiny_plan(against="asr"), tmp_path, lambda n, e: 0.5)
    tried = {kind for stage in seen[:3] for kind in kinds(stage)} - {"none"}
    assert all(map(is_backdoor, tried))
    assert outcome["metric"] == "asr"


def test_no_attack_that_runs_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no attack could be run"):
        pretend(tiny_plan(), tmp_path, lambda n, e: None)


def test_killed_and_started_again_it_ends_with_the_same_result(tmp_path, whole):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS), str(Path(secureafl.__file__).parents[1])]
    )
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, TESTS / "redteam" / "small.py", killed], env=environment
    )
    while process.poll() is None and len(list(killed.glob("runs/*/result.json"))) < 4:
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in killed.glob("runs/*/result.json")}
    assert len(before) >= 4
    assert not (killed / "redteam.json").exists()
    search_here(tiny_plan(), killed)
    for name in ("redteam.json", "trials.json", "worst.toml", "search.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_worst_experiment_gives_the_score_it_was_found_with(whole):
    outcome = json.loads((whole / "redteam.json").read_text())
    experiment = read_experiment(whole / "worst.toml")
    assert short_name(experiment.attack).startswith(outcome["worst"]["attack"]["kind"])
    last = [e for e in secureafl.simulate(experiment) if isinstance(e, EvaluationEvent)][-1]
    first = str(experiment.seed)
    assert last.metrics["ter"] == pytest.approx(outcome["worst"]["held_out"]["seeds"][first])


@pytest.mark.parametrize("malicious", [0.25, 2])
def test_printed_command_asks_for_the_same_search(malicious):
    defense = {"kind": "secure_afl", "alpha": 0.7, "aggregator": "trimmed_mean"}
    base = {"clients": 8, "malicious": malicious, "defense": defense, "seed": 9}
    plan = tiny_plan(base=base, held_out=(5, 6), search_seed=2, blind=True)
    _, _, name, *words = shlex.split(plan.command)
    options = list(itertools.pairwise(words))
    shares = [float(value) for option, value in options if option == "--malicious"] or [None]
    given = [value for option, value in options if option == "--set"]
    (base,) = _bases([name], shares, None, settings_given({"device": "cpu"}, None, given), False)
    assert Plan(base, BUDGET, "error", (5, 6), 2, True) == plan
    wanted = f"--budget {BUDGET} --against error --seeds 5,6 --search-seed 2 --blind"
    assert wanted in plan.command


def test_printed_command_of_the_worst_attack_runs_it():
    attack = {"kind": "composed", "cover": "own", "share": 0.5, "timing": "early", "period": 3}
    plan = tiny_plan(base={"defense": {"kind": "secure_afl", "alpha": 0.7}})
    _, command, *words = shlex.split(plan.run_command(attack, 102))
    options = list(itertools.pairwise(words))
    given = {name: value for name, value in options if name in ("--defense", "--attack", "--seed")}
    assert (command, given.pop("--seed")) == ("run", "102")
    plain = {name.removeprefix("--"): value for name, value in given.items()}
    plain |= {"seed": 102, "device": "cpu", "threads": 1}
    changes = settings_given(plain, None, [value for name, value in options if name == "--set"])
    assert from_mapping(with_settings({}, changes)) == plan.full(attack, 102)


def test_fast_attackers_are_a_setting_of_the_search():
    plan = tiny_plan(base={"arrivals": {"kind": "uniform", "malicious_pace": 20.0}})
    assert "--set arrivals.malicious_pace=20.0" in plan.command
    assert plan.short({"kind": "sign_flip"}).arrivals.malicious_pace == 20


def test_folder_of_the_data_is_no_part_of_what_is_told():
    def told(data_dir):
        plan = Plan(Experiment(task=FashionMnist(data_dir)))
        return plan.command, plan.portable()

    assert told("my/folder") == told("")
    assert "my/folder" in str(Plan(Experiment(task=FashionMnist("my/folder"))).to_mapping())
    assert "--set task.data_dir=embedded" in told("embedded")[0]
    assert told("embedded")[1]["base"]["task"]["data_dir"] == "embedded"


def test_order_in_which_runs_end_does_not_matter(tmp_path, monkeypatch, whole, capsys):
    def backwards(cells, out, *rest, **more):
        return engine_here(dict(reversed([*cells.items()])), out, *rest, **more)

    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: backwards)
    search_all({tmp_path: tiny_plan()}, "local", 0, 60.0, quiet=False)
    assert (tmp_path / "redteam.json").read_bytes() == (whole / "redteam.json").read_bytes()
    assert "held-out seeds 101, 102" in capsys.readouterr().err


def test_folder_of_another_search_is_refused_and_kept(tmp_path):
    pretend(tiny_plan(), tmp_path, lambda n, e: 0.5)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=r"another search \(budget is 6 there and 9 here\)"):
        next(stages(tiny_plan(budget=9), tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_of_two_searches_that_claim_a_folder_at_once_one_has_it(tmp_path, monkeypatch):
    plans = [tiny_plan(), tiny_plan(budget=9)]
    put = secureafl.redteam.folder.put_new_file

    def overtaken(path, content):
        """The other one has looked, found nothing, and is as far as this one."""
        monkeypatch.undo()
        next(stages(plans[1], tmp_path))
        put(path, content)

    monkeypatch.setattr("secureafl.redteam.folder.put_new_file", overtaken)
    with pytest.raises(RunError, match="holds another search"):
        next(stages(plans[0], tmp_path))
    assert json.loads((tmp_path / "search.json").read_text())["budget"] == 9
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


def test_claim_that_was_killed_midway_does_not_keep_the_folder(tmp_path):
    (tmp_path / ".search.json.4711").write_text('{"budg')
    next(stages(tiny_plan(), tmp_path))


def test_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is in use"):
        next(stages(tiny_plan(), tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": 0}, "budget = 0: give 1 attack"),
        ({"against": "ASR"}, "against = 'ASR': choose one of 'error', 'asr'"),
        ({"held_out": (5, 6, 5)}, "give each held-out seed once"),
        ({"held_out": (5, -6)}, "seed = -6: give 0 or more"),
        ({"held_out": (5, 2**63)}, "seed = 9223372036854775808"),
        ({"search_seed": 2**32}, "search-seed = 4294967296: give 0 or more, below"),
        ({"held_out": (0, 5)}, "seed 0 is used in the search"),
        ({"held_out": (1, 5)}, "seed 1 is used in the search"),
        ({"held_out": ()}, "one held-out seed or more"),
        ({"search_seed": -1}, "search-seed = -1"),
        ({"base": {"malicious": 4}}, "malicious = 4: give a share up to one half"),
        ({"base": {"malicious": 0.7}}, "malicious = 0.7"),
        ({"base": {"malicious": 0.01}}, "malicious = 0.01"),
    ],
)
def test_plan_that_makes_no_sense_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        tiny_plan(**changes)


def test_plan_computes_with_one_thread_unless_told():
    assert Plan(tiny()).base.threads == 1
    assert Plan(tiny(threads=2)).base.threads == 2


SCORED = [
    ({"kind": "a", "x": 1.0, "way": "up"}, 0.2),
    ({"kind": "a", "x": 2.0, "way": "up"}, 0.3),
    ({"kind": "a", "x": 9.0, "way": "down"}, 0.8),
    ({"kind": "b"}, 0.5),
]


def test_effects_of_attacks_are_means_over_their_runs():
    first, second = effects_of_attacks(SCORED)
    assert first["value"] == "a"
    assert (first["tried"], first["highest"]) == (3, 0.8)
    assert first["mean"] == pytest.approx(1.3 / 3)
    assert second == {"value": "b", "tried": 1, "mean": 0.5, "highest": 0.5}


def test_effects_of_parts_are_ordered_by_how_much_their_values_differ():
    space = {"a": {"x": Range(0.0, 10.0), "way": ("up", "down")}, "b": {}}
    numbers, ways = effects_of_parts(SCORED, "a", space)
    assert (numbers["part"], ways["part"]) == ("x", "way")
    assert [line["value"] for line in numbers["values"]] == ["1", "2", "9"]
    assert numbers["effect"] == pytest.approx(0.6)
    assert ways["effect"] == pytest.approx(0.55)
    assert effects_of_parts(SCORED, "b", space) == []
