"""Settings are held to their annotations, whether they come from TOML or from Python."""

import dataclasses
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

import secureafl
from secureafl import Evaluation, Experiment, Schedule, Server, Training, Upload
from secureafl.aggregators import Bucketing
from secureafl.attacks import NoAttack, SignFlip
from secureafl.core.errors import ConfigError
from secureafl.core.ledger import Ledger
from secureafl.core.privacy import Privacy
from secureafl.core.setting_types import fitted
from secureafl.defenses import AsyncSgd, SecureAfl
from secureafl.experiment import from_mapping, write_experiment
from secureafl.redteam.plan import Plan

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Listing(NoAttack):
    """Settings of every kind that a file can hold."""

    steps: tuple[float, ...] = (1.0,)
    pairs: tuple[tuple[int, str], ...] = ()
    names: list[str] = dataclasses.field(default_factory=list)
    limit: int | None = None
    sloppy: int = None
    shape: Literal["round", 3] = "round"
    anything: Any = 0
    made: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self):
        object.__setattr__(self, "made", float(len(self.steps)))


@dataclass(frozen=True)
class Unresolved(NoAttack):
    price: "Decimal" = 0


WRONG = {  # made when the test runs, and the one line about it
    "unit": (lambda: Privacy(unit="client"), "unit = 'client': choose one of 'example', 'upload'"),
    "clip": (lambda: Privacy(clip=True), "clip = True: give a number"),
    "shape": (lambda: Schedule(shape="square"), "shape = 'square': choose one of 'constant', "),
    "warmup": (lambda: Schedule(warmup=2.0), "warmup = 2.0: give a whole number"),
    "reduction": (lambda: Training(reduction="max"), "reduction = 'max': choose one of 'mean', "),
    "privacy": (
        lambda: Training(privacy={"clip": 1.0}),
        "privacy = {'clip': 1.0}: give Priv",
    ),
    "steps": (lambda: Training(local_steps=1.5), "local_steps = 1.5: give a whole number"),
    "rate": (lambda: Training(learning_rate="0.1"), "learning_rate = '0.1': give a number"),
    "every": (lambda: Evaluation(every=None), "every = None: give a whole number"),
    "rounds": (lambda: Experiment(rounds=3.0), "rounds = 3.0: give a whole number"),
    "clients": (lambda: Experiment(clients=True), "clients = True: give a whole number"),
    "share": (lambda: Experiment(malicious=float("nan")), "malicious = nan: give a number"),
    "device": (lambda: Experiment(device=0), "device = 0: give a text"),
    "placement": (lambda: Experiment(placement="first"), "placement = 'first': choose one of"),
    "kernels": (lambda: Experiment(kernels="tpu"), "kernels = 'tpu': choose one of 'auto', "),
    "training": (
        lambda: Experiment(training={"batch_size": 3}),
        "training = {'batch_size': 3}: give Training(…), not a table of settings",
    ),
    "evaluation": (lambda: Experiment(evaluation=5), "evaluation = 5: give Evaluation(…), not int"),
    "schedule": (
        lambda: Experiment(server_schedule="linear"),
        "server_schedule = 'linear': give Schedule(…), not str",
    ),
    "filter": (
        lambda: Experiment(defense=SecureAfl(filter="no")),
        "defense.filter = 'no': give true or false",
    ),
    "aggregator": (
        lambda: Experiment(defense=SecureAfl(aggregator="median")),
        "defense.aggregator = 'median': give an object with the methods of Aggregator",
    ),
    "inner": (
        lambda: Experiment(defense=SecureAfl(aggregator=Bucketing(inner=Bucketing))),
        "defense.aggregator.inner = <class 'secureafl.aggregators.bucketing.Bucketing'>: "
        "that is the class; give Bucketing()",
    ),
    "factor": (lambda: Experiment(attack=SignFlip(factor=True)), "attack.factor = True: give a nu"),
    "no tuple": (lambda: Experiment(attack=Listing(steps={1.0})), "attack.steps = {1.0}: give a t"),
    "text": (
        lambda: Experiment(attack=Listing(steps=[1, "2"])),
        "attack.steps[1] = '2': give a number",
    ),
    "length": (
        lambda: Experiment(attack=Listing(pairs=((1, "a"), (2,)))),
        "attack.pairs[1] = (2,): give 2 values",
    ),
    "choice": (lambda: Experiment(attack=Listing(shape="3")), "attack.shape = '3': choose one of "),
    "union": (
        lambda: Experiment(attack=Listing(limit="3")),
        "attack.limit = '3': give a whole number or None",
    ),
    "file": (
        lambda: from_mapping({"attack": {"kind": f"{__name__}:Listing", "steps": "12"}}),
        "attack.steps = '12': give a tuple",
    ),
    "unresolved": (lambda: Experiment(attack=Unresolved()), "Unresolved: name 'Decimal' is not "),
    "unresolved, in a file": (
        lambda: from_mapping({"attack": f"{__name__}:Unresolved"}),
        "Unresolved: name 'Decimal' is not defined, in an annotation; import it",
    ),
    "against": (lambda: Plan(Experiment(), against="ter"), "against = 'ter': choose one of"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_type_is_refused_in_one_line(mistake):
    make, said = WRONG[mistake]
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_numbers_of_other_libraries_become_pythons():
    made = Experiment(
        seed=np.int64(7),
        rounds=torch.tensor(5),
        clients=np.uint8(4),
        malicious=np.float32(0.5),
        training=Training(batch_size=np.int32(3), learning_rate=np.float64(0.25), local_steps=2),
        attack=SignFlip(factor=np.int64(3)),
        defense=SecureAfl(filter=np.False_),
    )
    found = (made.seed, made.rounds, made.clients, made.malicious, made.training.batch_size)
    assert found == (7, 5, 4, 0.5, 3)
    assert [*map(type, found)] == [int, int, int, float, int]
    assert type(made.training.learning_rate) is float
    assert type(made.attack.factor) is float
    assert made.defense.filter is False
    assert from_mapping({"seed": np.int64(7), "rounds": np.int16(5)}).seed == 7


def test_object_given_stays_as_it_was():
    attack, training = Listing(steps=[1, 2]), Training()
    made = Experiment(attack=attack, training=training)
    assert attack.steps == [1, 2]
    assert made.attack.steps == (1.0, 2.0)
    assert made.training is training


def test_tuples_and_lists_survive_a_file_and_can_be_compared():
    given = Listing(steps=[1, 2], pairs=[[1, "a"], (2, "b")], names=("x",), limit=3)
    made = Experiment(attack=given)
    assert made.attack.pairs == ((1, "a"), (2, "b"))
    assert made.attack.names == ["x"]
    read = from_mapping(tomllib.loads(write_experiment(made)))
    assert read == made
    assert secureafl.experiment.to_mapping(read) == secureafl.experiment.to_mapping(made)
    stored = tomllib.loads(write_experiment(made))["attack"]
    assert stored == secureafl.experiment.to_mapping(made)["attack"], "as `require_same` compares"
    assert hash(Experiment(attack=Attacker(steps=[1, 2]))) == hash(
        Experiment(attack=Attacker(steps=(1.0, 2.0)))
    )


@dataclass(frozen=True)
class Attacker(NoAttack):
    steps: tuple[float, ...] = ()


def test_default_of_none_and_fields_of_no_setting_are_their_authors_business():
    made = Experiment(attack=Listing(anything=object))
    assert (made.attack.sloppy, made.attack.limit, made.attack.made) == (None, None, 1.0)


def test_whole_number_comes_before_the_number_in_a_union():
    assert type(fitted(float | int, 3, "x")) is int
    assert type(fitted(int | float, 3.0, "x")) is float
    assert fitted(Literal["a"] | float, "a", "x") == "a"
    assert fitted(Path, Path("x"), "x") == Path("x")
    with pytest.raises(ConfigError, match=r"x = 'b': give 'a', 'c' or a number"):
        fitted(Literal["a", "c"] | float, "b", "x")


@pytest.mark.parametrize("number", [np.int64(1), np.uint8(1), torch.tensor(1)])
def test_server_takes_whole_numbers_of_any_library(number):
    server = Server(AsyncSgd(), num_clients=np.int64(2), learning_rate=np.float32(0.5), seed=number)
    state = server.start(torch.zeros(3))
    for _ in range(2):
        state.ledger.lend(state.round, state.weights)
        version = number - 1 + state.round
        decision, state = server.receive(state, Upload(number, version, torch.ones(3)))
        assert bool(decision.accepted)
        assert type(state.round) is int
    assert state.weights.tolist() == [-1.0] * 3
    assert not state.ledger.models()


@pytest.mark.parametrize("number", [1.0, "1", None, [1], np.array([0, 1]), torch.tensor(1.0)])
def test_what_is_no_whole_number_is_refused_as_data(number):
    server = Server(AsyncSgd(), num_clients=2, learning_rate=0.5)
    state = server.start(torch.zeros(3))
    state.ledger.lend(0, state.weights)
    decision, after = server.receive(state, Upload(number, 0, torch.ones(3)))
    assert (bool(decision.accepted), decision.reason) == (False, "unknown_client")
    after.ledger.lend(1, state.weights)
    decision, _ = server.receive(after, Upload(0, number, torch.ones(3)))
    assert (bool(decision.accepted), decision.reason) == (False, "unknown_version")


def test_ledger_is_asked_with_any_whole_number():
    ledger = Ledger()
    ledger.lend(np.int64(3), torch.ones(1))
    assert ledger.look_up(np.int32(3)) is ledger.look_up(3) is not None


@pytest.mark.parametrize(
    ("changes", "weights", "said"),
    [
        ({"defense": "kardam"}, torch.zeros(3), "defense = 'kardam': give the object"),
        ({"defense": AsyncSgd}, torch.zeros(3), "that is the class; give AsyncSgd()"),
        ({"defense": SecureAfl(window=1.5)}, torch.zeros(3), "defense.window = 1.5: give a whole"),
        ({"num_clients": 0}, torch.zeros(3), "num_clients = 0: give a whole number of clients"),
        ({"num_clients": 2.0}, torch.zeros(3), "num_clients = 2.0: give a whole number"),
        ({"learning_rate": "0.1"}, torch.zeros(3), "learning_rate = '0.1': give a number"),
        ({}, np.zeros(3), "weights: of type ndarray; give all floats of a model in one row"),
        ({}, torch.zeros(3, 2), r"weights: of type Tensor, torch.float32 (3, 2); give"),
        ({}, torch.zeros(3, dtype=torch.int64), "weights: of type Tensor, torch.int64 (3,); give"),
    ],
)
def test_server_that_cannot_work_is_refused_when_it_starts(changes, weights, said):
    given = {"defense": AsyncSgd(), "num_clients": 2, "learning_rate": 0.5, **changes}
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        Server(**given).start(weights)
    assert "\n" not in str(caught.value)


class Loose:
    """An attack that is no dataclass: nobody could tell its settings."""

    knows = "own"
    init, poison_batch, poison_update = NoAttack.init, NoAttack.poison_batch, NoAttack.poison_update


def test_plug_in_that_is_no_dataclass_is_refused_with_what_makes_it_one():
    with pytest.raises(ConfigError, match=r"make its class a frozen dataclass, whose fields are"):
        Experiment(attack=Loose())
