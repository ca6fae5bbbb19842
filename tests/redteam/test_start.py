"""What a search is told to begin with: tables of attacks, and outcomes of earlier searches."""

import json
import shlex
from pathlib import Path

import pytest
from redteam.small import pretend, tiny_plan
from reference.tiny_task import TinyTask

import secureafl
from secureafl.core.errors import ConfigError, RunError
from secureafl.redteam.entries import _plan
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.space import find_space, known_attacks
from secureafl.redteam.start import with_start, with_starts

ALIE = {"kind": "alie", "z": 1.25}
FLIP = {"kind": "sign_flip", "factor": 7.5}


def outcome(folder, name, attack, **changes):
    """A file that a search might have left."""
    plan = {"base": {"defense": {"kind": changes.get("defense", "kardam")}}}
    plan |= {"against": changes.get("against", "error")}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"plan": plan, "worst": {"attack": attack}}))
    return path


def test_search_begins_with_these_attacks_and_goes_on_as_usual(tmp_path):
    plan = with_start(tiny_plan(budget=10), [ALIE, "{ kind = 'sign_flip', factor = 7.5 }", ALIE])
    found, _ = pretend(plan, tmp_path, lambda n, e: 0.5)
    tried = [trial["attack"] for trial in found["trials"]]
    assert tried[:2] == [ALIE, FLIP]
    assert tried[2:5] == list(known_attacks(find_space(plan.base.task, False)))[:3]
    assert len(tried) == 10


def test_attack_that_comes_first_is_not_tried_once_more():
    space = find_space(tiny_plan().base.task, False)
    known = list(known_attacks(space))
    assert Optimiser(space, 0, 4, known[2:3]).ask(4) == [known[2], known[0], known[1], known[3]]


def test_all_of_them_are_tried_even_by_a_blind_search():
    plan = with_start(tiny_plan(blind=True), [ALIE, FLIP])
    space = find_space(plan.base.task, False)
    assert Optimiser(space, 0, plan.known, plan.start).ask(2) == [ALIE, FLIP]


def test_of_a_folder_those_on_the_same_defence_with_the_same_goal_are_taken(tmp_path):
    outcome(tmp_path, "a", {"kind": "min_max"}, defense="async_sgd")
    outcome(tmp_path, "b", {"kind": "dba"}, against="asr")
    outcome(tmp_path, "c", FLIP)
    file = outcome(tmp_path, "d", ALIE, defense="async_sgd")
    assert with_start(tiny_plan(), [tmp_path]).start == (FLIP,)
    assert with_start(tiny_plan(), [str(tmp_path), file]).start == (FLIP, ALIE), "a file is meant"
    other = tiny_plan(base={"defense": "fed_buff"})
    with pytest.raises(ConfigError, match="no outcome of a search on fed_buff against error; give"):
        with_start(other, [tmp_path])
    started, without = with_starts([tiny_plan(), other], [tmp_path])  # of several, some may match
    assert (started.start, without.start) == ((FLIP,), ())


def test_folder_of_a_search_is_its_outcome(tmp_path):
    """Also one against another defence: it is named, as its file would be."""
    outcome(tmp_path, "redteam", ALIE, defense="async_sgd")
    (tmp_path / "trials.json").write_text("{}")
    assert with_start(tiny_plan(), [tmp_path]).start == (ALIE,)


def test_each_of_several_searches_begins_with_what_it_may_try():
    scaling = {"kind": "scaling", "poisoned_share": 0.5, "factor": 5.0}
    errors, backdoors = with_starts([tiny_plan(), tiny_plan(against="asr")], [ALIE, scaling])
    assert (errors.start, backdoors.start) == ((ALIE, scaling), (scaling,))
    with pytest.raises(ConfigError, match="attack 'nonsense'"):
        with_starts([tiny_plan(), tiny_plan(against="asr")], [{"kind": "nonsense"}])


def test_data_are_read_once_for_all_searches_and_not_at_all_without_attacks(monkeypatch):
    loaded, load = [], TinyTask.load
    plans = [tiny_plan(search_seed=seed) for seed in range(3)]
    monkeypatch.setattr(TinyTask, "load", lambda task: loaded.append(task) or load(task))
    assert with_starts(plans, ()) == plans
    assert not loaded
    with_starts(plans, [ALIE])
    assert len(loaded) == 1


def test_numbers_are_as_short_as_those_a_search_tries():
    (attack,) = with_start(tiny_plan(), [{"kind": "alie", "z": 1.2345678}]).start
    assert attack["z"] == 1.235


def test_budget_that_does_not_reach_for_them_is_refused():
    with pytest.raises(ConfigError, match="budget = 1: 2 attacks are to be tried"):
        with_start(tiny_plan(budget=1), [ALIE, FLIP])


def test_settings_that_are_not_given_have_their_defaults():
    (attack,) = with_start(tiny_plan(), [{"kind": "composed", "aim": "std"}]).start
    usual = secureafl.attacks.Composed()
    assert attack.items() >= {"aim": "std", "cover": usual.cover, "length": usual.length}.items()


def test_printed_command_and_entry_have_the_attacks():
    plan = with_start(tiny_plan(), [ALIE, {"kind": "composed", "cover": "none"}])
    words = shlex.split(plan.command)
    given = [words[place + 1] for place, word in enumerate(words) if word == "--start-from"]
    assert with_start(tiny_plan(), given) == plan
    stored = json.loads(json.dumps(plan.to_mapping()))
    assert _plan(stored, "file").start == plan.start
    assert _plan({k: v for k, v in stored.items() if k != "start"}, "file").start == ()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "nonsense"}, "attack 'nonsense'; this search has label_flip"),
        ({"z": 1.0}, "has no kind of attack; this search has"),
        ("{ kind = ['alie'] }", r"attack \['alie'\]"),
        (
            {"kind": "alie", "factor": 2.0},
            "setting factor is not searched; of alie these are searched: z",
        ),
        (
            {"kind": "alie", "z": -1.0},
            "z = -1.0 of alie is not searched; give a number from 0 to 3",
        ),
        ({"kind": "gaussian", "std": float("inf")}, "std = inf of gaussian is not searched"),
        ({"kind": "gaussian", "std": float("nan")}, "give a number from 0.01 to 200"),
        ({"kind": "gaussian", "std": "200"}, "std = '200' of gaussian is not searched"),
        ({"kind": "gaussian", "std": True}, "std = True of gaussian is not searched"),
        ({"kind": "composed", "collusion": "groups", "groups": 2.5}, "groups = 2.5 of composed"),
        ({"kind": "composed", "aim": "moon"}, "give one of mean, sign, std, label, one_class"),
        ("kind = 'alie', z = 1.0" * 20, "file name too long; give a table"),
        ("no/such/file.json", "start-from 'no/such/file.json': no table, file or folder"),
        (Path(__file__).parent, "redteam': a folder without outcomes; give a table"),
        ("{ kind = ", "start-from '{ kind = ': no table, file or folder"),
    ],
)
def test_what_is_no_attack_of_this_search_is_refused(source, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        with_start(tiny_plan(), [source])


def test_attack_without_a_trigger_is_refused_by_a_search_for_a_success_rate():
    with pytest.raises(ConfigError, match="attack 'alie'; this search has scaling"):
        with_start(tiny_plan(against="asr"), [ALIE])


@pytest.mark.parametrize("content", ["{}", "[]", '{"plan": 3}', "not JSON", '{"worst": {}}'])
def test_file_that_is_no_outcome_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    for source in (tmp_path, tmp_path / "a.json"):
        with pytest.raises(RunError, match=r"a\.json"):
            with_start(tiny_plan(), [source])
