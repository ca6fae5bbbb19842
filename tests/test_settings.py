import dataclasses
import math
import re
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.spies import SpyColluders, SpyOwn

from secureafl.attacks import LabelFlip, NoAttack, Scaling
from secureafl.core.errors import ConfigError, SecureAflError
from secureafl.defenses import TrustClipping
from secureafl.estimators import Lbfgs
from secureafl.experiment import (
    Evaluation,
    Experiment,
    from_mapping,
    read_experiment,
    to_mapping,
    with_settings,
    write_experiment,
)
from secureafl.report.tables import read_run
from secureafl.runs.query import results_table
from secureafl.runtime.records import stored_experiment
from secureafl.settings import RENAMED, name_for_files, refuse_old_names, short_name
from secureafl.toml import differences, parse_value, write_toml


def test_empty_file_is_the_papers_setting():
    assert from_mapping({}) == Experiment()
    assert Experiment().num_malicious == 0, "nobody is malicious without an attack"
    assert from_mapping({"attack": "gaussian"}).num_malicious == 10


def test_experiment_survives_toml(tmp_path):
    values = {
        "malicious": 3,
        "attack": {"kind": "scaling", "factor": 2},
        "defense": {
            "kind": "secure_afl",
            "window": 100,
            "estimator": {"kind": "lbfgs", "max_correction": math.inf},
            "aggregator": "trimmed_mean",
        },
        "arrivals": "event_driven",
    }
    experiment = from_mapping(values)
    (tmp_path / "e.toml").write_text(write_experiment(experiment))
    assert read_experiment(tmp_path / "e.toml") == experiment
    assert experiment.num_malicious == 3


_any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_keys = st.one_of(st.text("abcdefghij_", min_size=1, max_size=8), _any_text)
_plain = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), _any_text
)
_values = st.recursive(
    _plain,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(_keys, _values, max_size=5))
def test_whatever_is_written_as_toml_is_read_back(values):
    read = tomllib.loads(write_toml(values))
    assert read == values
    assert repr(read) == repr(dict(sorted_tables_last(values))), "types and signs of zero as well"


def sorted_tables_last(values):
    return sorted(values.items(), key=lambda item: isinstance(item[1], dict))


@given(st.floats(width=32, allow_nan=False), st.integers(-(2**63), 2**63 - 1))
def test_numbers_of_numpy_are_written_as_numbers(real, whole):
    values = {"a": np.float32(real), "b": np.float64(real), "c": [np.int64(whole)]}
    assert tomllib.loads(write_toml(values)) == {"a": real, "b": real, "c": [whole]}


@pytest.mark.parametrize("value", [None, [None], {"deep": b"bytes"}, object])
def test_what_toml_cannot_hold_is_refused_with_its_name(value):
    with pytest.raises(ConfigError, match=r"^mine = .*: TOML holds texts, numbers"):
        write_toml({"table": {"mine": value}})


@dataclasses.dataclass(frozen=True)
class Undecided(NoAttack):
    limit: int | None = None


def test_own_setting_may_be_none_by_default():
    for attack in (Undecided(), Undecided(limit=3)):
        experiment = Experiment(attack=attack)
        assert from_mapping(tomllib.loads(write_experiment(experiment))) == experiment


def test_settings_without_a_kind_are_the_defaults():
    inner = {"kind": "secure_afl", "estimator": {"buffer_size": 2}}
    assert from_mapping({"defense": inner}).defense.estimator == Lbfgs(buffer_size=2)
    short = TrustClipping(momentum=0.5)
    assert from_mapping({"defense": {"momentum": 0.5}}).defense == short


def test_setting_of_another_kind_than_the_default_is_refused_with_that_kind():
    with pytest.raises(ConfigError, match=r"'defense\.alpha'; 'secure_afl' has it"):
        from_mapping({"defense": {"alpha": 0.5}})


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_name_is_refused_with_its_new_one(old, new):
    said = f"unknown setting {old!r}; it is called {new!r} now"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        from_mapping({old: 1})
    with pytest.raises(
        ConfigError, match=re.escape(f"runs/old: made by an earlier version; {said}")
    ):
        refuse_old_names({old: 1}, "runs/old")


def test_run_folder_with_an_old_name_is_refused_when_resumed_or_read(tmp_path):
    stored = with_settings(to_mapping(Experiment()), {"weights": "equal"})
    (tmp_path / "experiment.toml").write_text(write_toml(stored))
    (tmp_path / "provenance.json").write_text("{}")
    said = f"{tmp_path}: made by an earlier version; .* called 'client_weighting' now"
    for reader in (stored_experiment, read_run, lambda path: results_table([path])):
        with pytest.raises(SecureAflError, match=said):
            reader(tmp_path)


def test_new_names_are_settings():
    assert set(RENAMED.values()) <= set(to_mapping(Experiment()))
    refuse_old_names(to_mapping(Experiment()), "today")


def test_naming_another_kind_drops_the_old_ones_settings():
    values = {"attack": {"kind": "gaussian", "std": 3.0}}
    assert with_settings(values, {"attack": "sign_flip"}) == {"attack": "sign_flip"}
    assert values == {"attack": {"kind": "gaussian", "std": 3.0}}


@pytest.mark.parametrize(
    ("given", "expected", "name"),
    [
        ("scaling", Scaling(), "scaling"),
        ("scaling@paper", Scaling(), "scaling"),
        ("scaling@stealth", Scaling(factor=1.0), "scaling@stealth"),
        ({"kind": "scaling@stealth"}, Scaling(factor=1.0), "scaling@stealth"),
        ({"kind": "scaling", "factor": 1}, Scaling(factor=1.0), "scaling@stealth"),
        (
            {"kind": "scaling@stealth", "target_class": 2},
            Scaling(factor=1.0, target_class=2),
            "scaling",
        ),
        ({"kind": "scaling@stealth", "factor": 3.0}, Scaling(factor=3.0), "scaling"),
        ({"kind": "scaling@stealth", "factor": 35.0}, Scaling(), "scaling"),
        ("label_flip@stealth", LabelFlip(), "label_flip"),
        ("simulation.spies:SpyOwn@stealth", SpyOwn(share=0.01), "simulation.spies:SpyOwn@stealth"),
    ],
)
def test_presets_are_settings_with_a_name(given, expected, name):
    experiment = from_mapping({"attack": given})
    assert experiment.attack == expected
    assert short_name(experiment.attack) == name
    written = to_mapping(experiment)
    assert str(written["attack"]["kind"]).partition("@")[1:] == name.partition("@")[1:]
    assert from_mapping(written) == experiment


def test_classes_of_one_file_have_names_of_their_own_also_for_files():
    made = [SpyOwn(), SpyColluders(), Scaling(factor=1.0)]
    names = ["simulation.spies:SpyOwn", "simulation.spies:SpyColluders", "scaling@stealth"]
    assert [short_name(one) for one in made] == names
    assert [name_for_files(one) for one in made] == [name.replace(":", ".") for name in names]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "scaling@quiet",
            "attack = 'scaling@quiet': unknown preset 'quiet'; known: paper, stealth",
        ),
        ("scaling@", "unknown preset ''; known: paper, stealth"),
        ("none@stealth", "unknown preset 'stealth'; known: none"),
        ("scalign@stealth", "unknown attack 'scalign'; did you mean 'scaling'"),
    ],
)
def test_preset_there_is_not_is_refused_with_those_there_are(kind, said):
    with pytest.raises(ConfigError, match=said):
        from_mapping({"attack": kind})


def test_settings_on_the_command_line_win_over_the_preset():
    values = with_settings({"attack": "scaling@stealth"}, {"attack.factor": 7.0})
    assert from_mapping(values).attack == Scaling(factor=7.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.7", 0.7), ("3", 3), ("true", True), ("median", "median"), ('"3"', "3"), ("[1]", [1])],
)
def test_values_on_the_command_line_have_the_type_they_look_like(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_whole_numbers_pass_for_numbers_but_not_the_other_way_round():
    assert type(from_mapping({"training": {"learning_rate": 1}}).training.learning_rate) is float
    with pytest.raises(ConfigError, match="give a whole number"):
        from_mapping({"rounds": 3.0})


def test_differences_are_named():
    here = {"seed": 1, "task": {"kind": "digits", "data_dir": ""}, "device": "cuda"}
    assert differences(here, here) == ""
    assert differences(here, {**here, "device": "cpu"}) == "device is 'cuda' there and 'cpu' here"
    told = differences({**here, "out": "x" * 100}, {"seed": 5})
    assert told == (
        "seed is 1 there and 5 here, task.kind is 'digits' there and missing here, "
        "task.data_dir is '' there and missing here, 2 more"
    )
    assert differences({"out": "x" * 100}, {}) == f"out is '{'x' * 56}... there and missing here"


def test_short_runs_are_evaluated_as_often_as_long_ones():
    assert {0, 30, 60, 270} < Evaluation().rounds(300)
    assert {0, 500, 1000, 19_500} < Evaluation().rounds(20_000)
    assert Evaluation().rounds(1) == {0, 1}


def test_late_evaluations_lie_in_the_last_tenth():
    assert Evaluation().late_rounds(20_000) == [18_400, 18_800, 19_200, 19_600, 20_000]
    assert Evaluation(every=7, late=3).rounds(10) == {0, 7, 9, 10}


@given(st.integers(1, 10**6), st.integers(1, 50), st.integers(0, 10**5))
def test_the_last_round_is_always_evaluated(total, late, every):
    rounds = Evaluation(every, late).rounds(total)
    assert total in rounds
    assert min(rounds) >= 0
    assert max(rounds) == total


@given(st.recursive(_plain, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3)))
def test_any_content_is_an_experiment_or_a_clear_refusal(content):
    for part in ("defense", "attack", "task", "training", "rounds", "arrivals", "partition"):
        try:
            experiment = from_mapping({part: content})
        except ConfigError as error:
            said = str(error)
        else:
            said = ""
            assert from_mapping(to_mapping(experiment)) == experiment
        assert "\n" not in said
        assert said.startswith(("unknown ", part)) or not said
