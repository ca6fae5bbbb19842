import importlib

import pytest
from reference.tiny_task import TinyTask

from secureafl.core.errors import ConfigError
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.space import Range, find_space, known_attacks

SPACE = {"sign_flip": {"factor": Range(0.1, 100.0, log=True)}, "label_flip": {}}


def strength(attack):
    return -abs(attack.get("factor", 0.0) - 20)


def proposals(seed, batches=6, known=2):
    optimiser, found = Optimiser(SPACE, seed, known), []
    for _ in range(batches):
        attacks = optimiser.ask(5)
        optimiser.tell([strength(attack) for attack in attacks])
        found += attacks
    return found


def test_same_seed_and_scores_give_the_same_proposals():
    assert proposals(0) == proposals(0)
    assert proposals(0) != proposals(1)


def test_known_attacks_come_first_unless_the_search_is_blind():
    space = find_space(TinyTask(), False)
    known = list(known_attacks(space))
    assert Optimiser(space, 0, known=3).ask(3) == known[:3]
    assert Optimiser(space, 0, known=0).ask(3) != known[:3]


def test_no_attack_is_proposed_twice():
    found = proposals(0)
    assert len({str(attack) for attack in found}) == len(found)


def test_where_only_one_attack_is_left_it_is_proposed_again():
    assert Optimiser({"label_flip": {}}, 0, known=1).ask(2) == [{"kind": "label_flip"}] * 2


def test_proposals_follow_the_scores():
    """The settings that harm are tried more often, and those of another attack do not matter."""
    space = {"sign_flip": SPACE["sign_flip"], "gaussian": {"std": Range(0.01, 200.0, log=True)}}
    optimiser = Optimiser(space, 0, known=0)
    for _ in range(12):
        attacks = optimiser.ask(6)
        optimiser.tell([attack.get("factor", 1e9) for attack in attacks])
    last = [attack["factor"] for attack in optimiser.ask(40) if "factor" in attack]
    assert len(last) == 20
    assert sum(factor > 30 for factor in last) >= 8, "at random it would be 3 or 4"


def test_every_second_attack_is_a_composed_one_and_the_others_take_turns():
    space = find_space(TinyTask(), False)
    found = [attack["kind"] for attack in Optimiser(space, 0, known=0).ask(60)]
    others = [kind for kind in space if kind != "composed"]
    assert found[: 2 * len(others) : 2] == ["composed"] * len(others)
    assert found[1 : 2 * len(others) : 2] == others
    assert found.count("label_flip") == 1, "it has no settings, so it is tried once"


def test_attack_that_did_not_run_is_passed_over():
    optimiser = Optimiser(SPACE, 0, known=2)
    optimiser.ask(3)
    optimiser.tell([None, 0.5, None])
    assert len(optimiser.ask(3)) == 3


def test_missing_optuna_is_told_with_its_remedy(monkeypatch):
    def refuse(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ConfigError, match=r'needs Optuna; .* pip install "secureafl\[redteam\]"'):
        Optimiser(SPACE, 0, known=1)
