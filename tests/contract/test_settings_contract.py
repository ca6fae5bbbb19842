"""What every entry of every table owes a TOML file."""

import dataclasses
import tomllib

import pytest

from secureafl import settings
from secureafl.defenses import SecureAfl
from secureafl.experiment import (
    TABLES,
    Experiment,
    from_mapping,
    read_experiment,
    to_mapping,
    write_experiment,
)

ENTRIES = {
    f"{protocol.__name__}-{kind}": (protocol, kind, cls)
    for protocol, table in TABLES.items()
    for kind, cls in table.items()
}
for_every_entry = pytest.mark.parametrize(
    ("protocol", "kind", "cls"), ENTRIES.values(), ids=ENTRIES.keys()
)


def field_of(protocol):
    """Where an experiment takes such a plug-in."""
    inside = {"Aggregator": "defense.aggregator", "Estimator": "defense.estimator"}
    names = {"ArrivalModel": "arrivals", "ServerOptimizer": "server_optimizer"}
    name = protocol.__name__
    return inside.get(name) or names.get(name) or name.lower()


def experiment_with(protocol, value):
    place, _, inner = field_of(protocol).partition(".")
    made = Experiment()
    if inner:
        value = SecureAfl(**{inner: value})
    return dataclasses.replace(made, **{place: value})


@for_every_entry
def test_defaults_satisfy_the_protocol(protocol, kind, cls):
    assert isinstance(cls(), protocol)


@for_every_entry
def test_entry_is_frozen_and_hashable(protocol, kind, cls):
    value = cls()
    assert hash(value) == hash(cls())
    assert value == cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.anything = 1


@for_every_entry
def test_defaults_survive_a_mapping(protocol, kind, cls):
    value = cls()
    mapping = settings.to_mapping(value, TABLES)
    assert set(mapping) == {field.name for field in dataclasses.fields(cls)}
    assert settings.build(cls, mapping, TABLES) == value


@for_every_entry
def test_defaults_survive_a_toml_file(protocol, kind, cls, tmp_path):
    experiment = experiment_with(protocol, cls())
    path = tmp_path / "experiment.toml"
    path.write_text(write_experiment(experiment), encoding="utf-8")
    found = read_experiment(path)
    assert found == experiment
    assert hash(found) == hash(experiment)


@for_every_entry
def test_entry_is_named_by_its_kind_alone(protocol, kind, cls):
    place, _, inner = field_of(protocol).partition(".")
    given = {place: {"kind": "secure_afl", inner: kind} if inner else kind}
    assert from_mapping(given) == experiment_with(protocol, cls())


@for_every_entry
def test_written_kind_is_the_name_in_the_table(protocol, kind, cls):
    mapping = to_mapping(experiment_with(protocol, cls()))
    place, _, inner = field_of(protocol).partition(".")
    assert (mapping[place][inner] if inner else mapping[place])["kind"] == kind


@pytest.mark.parametrize("entry", [name for name in ENTRIES if not name.startswith("Partition")])
def test_results_call_an_entry_by_its_kind(entry):
    _, kind, cls = ENTRIES[entry]
    assert settings.short_name(cls()) == kind


def test_infinite_settings_survive_toml():
    estimator = {"kind": "lbfgs", "min_curvature": float("-inf"), "max_correction": float("inf")}
    experiment = from_mapping({"defense": {"kind": "secure_afl", "estimator": estimator}})
    assert from_mapping(tomllib.loads(write_experiment(experiment))) == experiment
