"""When a search has found enough, and when it goes on although it seems so."""

import itertools

import pytest
from redteam.small import made_up, pretend, tiny_plan

from secureafl.core.errors import RunError
from secureafl.experiment import to_mapping
from secureafl.redteam.search import stages
from secureafl.settings import short_name
from secureafl.toml import on_one_line


@pytest.mark.parametrize("against", ["error", "asr"])
def test_search_ends_when_four_attacks_leave_nothing_to_be_worse(tmp_path, against):
    plan = tiny_plan(budget=40, against=against)

    def all_lost_from_the_second_batch(number, experiment):
        error = 0.49 * plan.error_ceiling
        if number == 0:
            return error
        return 1.0 if against == "error" else (error, 1.0)  # a backdoor leaves the model useful

    outcome, seen = pretend(plan, tmp_path, all_lost_from_the_second_batch)
    assert [len(stage.cells) for stage in seen] == [5 + 1, 5, 2 * (1 + 1)], "no longer runs"
    assert len(outcome["trials"]) == 10
    assert [t["number"] for t in outcome["trials"] if t["held_out"]["seeds"]] == [6]


@pytest.mark.parametrize(("lost", "tried"), [(3, 20), (4, 4)])
def test_fewer_than_four_such_attacks_do_not_end_it(tmp_path, lost, tried):
    figures = itertools.chain([0.95] * lost, itertools.repeat(0.2))
    plan = tiny_plan(budget=20)

    def some_lost(number, experiment):
        if short_name(experiment.attack) == "none":
            return 0.1
        return 0.95 if experiment.rounds == plan.base.rounds else next(figures)

    outcome, _ = pretend(plan, tmp_path, some_lost)
    assert len(outcome["trials"]) == tried


def test_search_goes_on_where_no_short_run_has_learned(tmp_path):
    plan = tiny_plan(budget=10)
    outcome, _ = pretend(plan, tmp_path, lambda n, e: 1.0)
    assert len(outcome["trials"]) == 10


def test_search_goes_on_where_the_model_learns_nothing_without_an_attack(tmp_path):
    plan = tiny_plan(budget=10)

    def weak_attack(number, experiment):
        return 0.1 if short_name(experiment.attack) == "gaussian" else 1.0

    outcome, _ = pretend(plan, tmp_path, weak_attack)
    assert len(outcome["trials"]) == 10


def test_defence_that_cannot_run_does_not_cost_the_budget(tmp_path):
    plan = tiny_plan(budget=40)
    batches = made_up(stages(plan, tmp_path), lambda n, e: None)
    next(batches)
    with pytest.raises(RunError, match="no attack could be run"):
        next(batches)


def test_attacks_that_fail_do_not_end_a_search_of_a_defence_that_runs(tmp_path):
    plan = tiny_plan(budget=10)

    def late_ones_run(number, experiment):
        return 0.1 if short_name(experiment.attack) == "none" or number > 0 else None

    outcome, _ = pretend(plan, tmp_path, late_ones_run)
    assert len(outcome["trials"]) == 10


def test_result_at_full_length_is_kept_when_all_longer_runs_fail(tmp_path):
    plan = tiny_plan(budget=10)

    def no_longer_runs(number, experiment):
        if short_name(experiment.attack) == "none":
            return 0.1
        if experiment.rounds == plan.base.rounds:
            return 0.3  # of the one that seemed to have lost the model
        return 1.0 if experiment.rounds < plan.base.rounds // 2 else None

    outcome, _ = pretend(plan, tmp_path, no_longer_runs)
    assert outcome["worst"]["held_out"]["mean"] == pytest.approx(0.3)


def worst_at_full_length(plan, lost_there):
    """Figures of a search in which attacks lose the model; at full length, maybe not the first."""

    def score(number, experiment):
        kind = short_name(experiment.attack)
        if kind == "none":
            return 0.1
        full = experiment.rounds == plan.base.rounds
        return 1.0 if not full or lost_there or kind != "label_flip" else 0.2

    return score


@pytest.mark.parametrize("lost_there", [True, False])
def test_finalist_that_leaves_nothing_to_be_worse_has_no_rivals(tmp_path, lost_there):
    plan = tiny_plan(budget=10)
    outcome, seen = pretend(plan, tmp_path, worst_at_full_length(plan, lost_there))
    full = [len(stage.cells) for stage in seen if "full length" in stage.title]
    assert full == ([2 * 2] if lost_there else [2 * 2, 2 * 2])
    assert outcome["worst"]["held_out"]["mean"] == 1.0
    assert (outcome["worst"]["attack"]["kind"] == "label_flip") == lost_there
    assert len(outcome["trials"]) == (4 if lost_there else 10), "else there is more to search for"


def test_search_that_went_on_tries_other_attacks_at_full_length(tmp_path):
    plan, tried = tiny_plan(budget=10), []

    def mild_at_full_length(number, experiment):
        if short_name(experiment.attack) == "none":
            return 0.1
        if experiment.rounds == plan.base.rounds:
            tried.append(on_one_line(to_mapping(experiment)["attack"]))
            return 0.3
        return 1.0

    outcome, seen = pretend(plan, tmp_path, mild_at_full_length)
    assert [len(set(tried[:2])), len(set(tried))] == [1, 1 + plan.finalists]
    assert ["short" in s.title or "longer" in s.title for s in seen[2:5]] == [True, True, True]
    assert sum(t["held_out"]["mean"] == 0.3 for t in outcome["trials"]) == 1 + plan.finalists
