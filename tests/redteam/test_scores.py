"""What the runs of a search come to, damaged and foreign ones too."""

import json
import math

import pytest
from redteam.small import pretend, tiny_plan, write_result

from secureafl.core.errors import RunError
from secureafl.redteam.folder import cell_name
from secureafl.redteam.plan import NO_ATTACK
from secureafl.redteam.scores import Scores
from secureafl.settings import short_name

FLIP = {"kind": "label_flip"}
SCALING = {"kind": "scaling", "poisoned_share": 0.5, "factor": 5.0}


def scored(tmp_path, figure, without_attack=0.1, against="asr"):
    """The scores of a search that has one short run with an attack, and one without."""
    plan = tiny_plan(against=against)
    for attack, found in ((SCALING, figure), (NO_ATTACK, without_attack)):
        run = tmp_path / "runs" / cell_name(attack, "short")
        write_result(run, plan.short(attack), found)
    return Scores(plan, tmp_path)


@pytest.mark.parametrize("error", [0.99, math.inf])
def test_model_that_is_good_for_nothing_has_no_backdoor(tmp_path, error):
    """Naming the target class whatever the image is no backdoor: it is a destroyed model."""
    assert scored(tmp_path, (error, 1.0)).short(SCALING) == 0


def test_a_backdoor_in_a_useful_model_counts_in_full(tmp_path):
    assert scored(tmp_path, (0.5, 0.9)).short(SCALING) == 0.9


def test_where_short_runs_never_learn_their_success_rates_count(tmp_path):
    """A slow rule's models are bad early on without an attack too."""
    scores = scored(tmp_path, (0.99, 0.7), without_attack=0.9)
    assert scores.short(SCALING) == 0.7
    write_result(
        tmp_path / "runs" / cell_name(SCALING, "longer"), tiny_plan().longer(SCALING), math.inf
    )
    assert scores.longer(SCALING) == 0, "what diverged is no good in any case"
    for seed in scores.held_out_runs(SCALING):
        run = scores.held_out_runs(SCALING)[seed]
        write_result(run, tiny_plan().full(SCALING, seed), (0.99, 0.7))
    assert set(scores.held_out(SCALING).values()) == {0.0}, "whole runs have had their time"


def test_a_destroyed_model_does_not_win_a_search_for_backdoors(tmp_path):
    def figures(number, experiment):
        kind = short_name(experiment.attack)
        if kind == "none":
            return 0.1
        return (0.99, 1.0) if kind == "scaling" else (0.12, 0.6)

    outcome, _ = pretend(tiny_plan(against="asr"), tmp_path, figures)
    assert outcome["worst"]["attack"]["kind"] != "scaling"
    assert outcome["worst"]["held_out"]["mean"] == 0.6
    assert outcome["worst"]["error"]["mean"] == 0.12


def test_a_run_with_other_settings_is_not_taken_for_the_search_s(tmp_path):
    """An engine leaves it alone and says so; its result is another run's."""
    plan = tiny_plan()
    run = tmp_path / "runs" / cell_name(FLIP, "short")
    write_result(run, plan.longer(FLIP), 0.9)
    assert Scores(plan, tmp_path).short(FLIP) is None
    write_result(run, plan.short(FLIP), 0.9)
    assert Scores(plan, tmp_path).short(FLIP) == 0.9


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"metrics": {}}',
        '{"metrics": [1]}',
        '{"metrics": {"ter": 3}}',
        '{"metrics": {"ter": {}}}',
        '{"metrics": {"ter": {"late_mean": "0.5"}}}',
        '{"metrics": {"ter": {"late_mean": NaN}}}',
        '{"metrics": {"ter": {"late_mean": true}}}',
        "not JSON",
        "",
        "[]",
    ],
)
def test_damaged_result_is_one_line_with_the_remedy(tmp_path, content):
    scores = scored(tmp_path, 0.5, against="error")
    run = tmp_path / "runs" / cell_name(SCALING, "short")
    (run / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result\.json: is no result of a run; delete .* again"):
        scores.short(SCALING)


def test_backdoor_whose_success_was_not_measured_is_damaged(tmp_path):
    scores = scored(tmp_path, 0.2)
    run = tmp_path / "runs" / cell_name(SCALING, "short")
    (run / "result.json").write_text(json.dumps({"metrics": {"ter": {"late_mean": 0.1}}}))
    with pytest.raises(RunError, match="is no result of a run"):
        scores.short(SCALING)
