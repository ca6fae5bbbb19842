"""`secureafl.testing`: a plug-in with one mistake gets one line that names it."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from contract.wrong_attacks import ATTACKS, told
from reference.tiny_task import TinyNormed, TinyRegression, TinyTask
from torch import nn

from secureafl.core.errors import ConfigError
from secureafl.core.types import Decision
from secureafl.defenses import AsyncSgd, FedBuff, Kardam
from secureafl.experiment import Experiment
from secureafl.testing import ContractError, check_attack, check_defense, check_task

DEFENSES, TASKS = {}, {}


class Buffer(FedBuff):
    """A right defence, to be spoilt below."""

    def decide(self, arrival, state, **changes):
        yes = torch.ones((), dtype=torch.bool, device=arrival.gradient.device)
        made = Decision(yes, yes, arrival.gradient, {}, "")
        return made._replace(**changes), state


@told(DEFENSES, "NoState.init: the state is None; give a tensor")
class NoState(AsyncSgd):
    def init(self, num_clients, weights):
        return None


@told(DEFENSES, "Counting.init: state.count is 0, of type int; give a tensor")
class Counting(AsyncSgd):
    class State(NamedTuple):
        count: int

    def init(self, num_clients, weights):
        return self.State(0)


@told(DEFENSES, "Listing.init: the state is [], of type list; give a tensor")
class Listing(AsyncSgd):
    def init(self, num_clients, weights):
        return []


@told(DEFENSES, "PlainTrue.step: Decision.accepted: it is True, of type bool; give a tensor")
class PlainTrue(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, accepted=True)


@told(DEFENSES, "PlainReady.step: Decision.ready: it is False, of type bool; give a tensor")
class PlainReady(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, ready=False)


@told(DEFENSES, "ManyFlags.step: Decision.accepted: it is torch.bool (7,); give a torch.bool")
class ManyFlags(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, accepted=arrival.gradient > 0)


@told(DEFENSES, "PlainScore.step: Decision.scores['norm']: it is 1.0; give a tensor")
class PlainScore(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, scores={"norm": 1.0})


@told(DEFENSES, "Branching.step: it reads a tensor on the host")
class Branching(Buffer):
    def step(self, state, arrival, server):
        if arrival.gradient.norm() > 3:
            return self.decide(arrival, state, direction=arrival.gradient / 2)
        return self.decide(arrival, state)


@told(DEFENSES, "Reading.step: it reads a tensor on the host")
class Reading(Buffer):
    def step(self, state, arrival, server):
        half = arrival.gradient.norm().item() / 2
        return self.decide(arrival, state, direction=arrival.gradient.clamp(-half, half))


@told(DEFENSES, "Floating.step: it reads a tensor on the host")
class Floating(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, direction=arrival.gradient / float(server.round + 1))


@told(DEFENSES, "HereOnly.init: it makes state on the cpu; make it on weights.device")
class HereOnly(Buffer):
    def init(self, num_clients, weights):
        return torch.zeros(num_clients)

    def step(self, state, arrival, server):
        return self.decide(arrival, state)


@told(DEFENSES, "Growing.step: state is (1, 7) torch.float32 cpu and was (0, 7) torch.float32 cpu")
class Growing(Buffer):
    def init(self, num_clients, weights):
        return weights.new_zeros(0, len(weights))

    def step(self, state, arrival, server):
        return self.decide(arrival, torch.cat([state, arrival.gradient[None]]))


@told(DEFENSES, "Widening.step: state is (7,) torch.float64 cpu and was (7,) torch.float32 cpu")
class Widening(Buffer):
    def init(self, num_clients, weights):
        return torch.zeros_like(weights)

    def step(self, state, arrival, server):
        return self.decide(arrival, state.double() + arrival.gradient)


@told(DEFENSES, "Splitting.step: the state is state.0, state.1; at first it was state")
class Splitting(Buffer):
    def init(self, num_clients, weights):
        return torch.zeros_like(weights)

    def step(self, state, arrival, server):
        return self.decide(arrival, (state, state.clone()))


@told(DEFENSES, "Clipping.step: it changes arrival.gradient in place; work on a copy")
class Clipping(Buffer):
    def step(self, state, arrival, server):
        arrival.gradient.clamp_(-0.1, 0.1)
        return self.decide(arrival, state)


@told(DEFENSES, "Stepping.step: it changes server.weights in place")
class Stepping(Buffer):
    def step(self, state, arrival, server):
        server.weights.sub_(0.01 * arrival.gradient)
        return self.decide(arrival, state)


@told(DEFENSES, "Squaring.step: Decision.direction: it is not finite; guard divisions")
class Squaring(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, direction=arrival.gradient**3 / arrival.gradient**2)


@told(DEFENSES, "Halved.step: Decision.direction: it is torch.float64 (7,), not torch.float32 (7,)")
class Halved(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, direction=arrival.gradient.double())


@told(DEFENSES, "Shorter.step: Decision.direction: it is torch.float32 (6,), not torch.float32")
class Shorter(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state, direction=arrival.gradient[1:])


@told(DEFENSES, "Noisy.step: two equal runs differ; draw from the generator")
class Noisy(Buffer):
    def step(self, state, arrival, server):
        noise = torch.randn_like(arrival.gradient)
        return self.decide(arrival, state, direction=arrival.gradient + noise)


@told(DEFENSES, "Alone.step: it returns a Decision; return (Decision(...), state)")
class Alone(Buffer):
    def step(self, state, arrival, server):
        return self.decide(arrival, state)[0]


@told(DEFENSES, "Losing.forget: the state is (); at first it was state.mean, state.count")
class Losing(FedBuff):
    def forget(self, state, client):
        return ()


@told(TASKS, "Narrow.model: outputs are (4, 2) for labels (4,); give a row for each sample")
class Narrow(TinyTask):
    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 2))


@told(TASKS, "Column.model: outputs are (4, 1) for labels (4,); give one number for each")
class Column(TinyRegression):
    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 1))


@told(TASKS, "Bytes.load: training labels are torch.uint8; give int64")
class Bytes(TinyTask):
    def load(self):
        data = super().load()
        return data._replace(train_labels=data.train_labels.to(torch.uint8))


@told(TASKS, "Short.load: test inputs are (30, 1, 6, 6), labels (29,); give one label for each")
class Short(TinyTask):
    def load(self):
        data = super().load()
        return data._replace(test_labels=data.test_labels[1:])


@told(TASKS, "Undefined.metrics['ter']: it is nan; give a finite float")
class Undefined(TinyTask):
    def metrics(self, outputs, labels):
        return {"ter": float("nan")}


@told(TASKS, "Sum.loss: it is (4,); give the mean over the batch")
class Sum(TinyTask):
    def loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="none")


@told(TASKS, "Hidden.model: training changes its buffer '1.num_batches_tracked'")
class Hidden(TinyNormed):
    norm: str = "counting"


@told(TASKS, "Scored.metrics: 'right' is higher for better outputs; give an error first")
class Scored(TinyTask):
    def metrics(self, outputs, labels):
        return {"right": float((outputs.argmax(dim=1) == labels).double().mean())}


@told(TASKS, "Half.model: '1.weight' is torch.float16; give model.float()")
class Half(TinyTask):
    def model(self):
        return super().model().half()


@told(TASKS, "Added.loss: a batch twice as long has twice the loss; give the mean over it")
class Added(TinyTask):
    def loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="sum")


class Peeks(nn.Sequential):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs / 2 if outputs.max() > 5 else outputs


@told(TASKS, "Looking.model: it reads a tensor on the host")
class Looking(TinyTask):
    def model(self):
        return Peeks(nn.Flatten(), nn.Linear(36, 3))


CASES = [
    pytest.param(check, *case, id=name)
    for check, table in ((check_defense, DEFENSES), (check_attack, ATTACKS), (check_task, TASKS))
    for name, case in table.items()
]


@pytest.mark.parametrize(("check", "cls", "said"), CASES)
def test_mistake_is_told_in_one_line(check, cls, said):
    with pytest.raises(ContractError) as caught:
        check(cls())
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_what_they_were_spoilt_from_is_right():
    @dataclass(frozen=True)
    class Right(Buffer):
        def step(self, state, arrival, server):
            return self.decide(arrival, state)

    check_defense(Right())
    check_task(TinyNormed())
    check_task(TinyRegression())


def test_defence_that_says_it_reads_on_the_host_may():
    @dataclass(frozen=True)
    class Honest(DEFENSES["Reading"][0]):
        on_host = True

    check_defense(Honest())


@pytest.mark.parametrize("given", ["kardam", Kardam])
def test_name_or_class_instead_of_the_object_is_told(given):
    with pytest.raises(ContractError, match=r"give the object itself, as check_defense"):
        check_defense(given)


def test_object_that_lacks_methods_or_can_change_is_told():
    class Loose(AsyncSgd.__base__):
        def init(self, num_clients, weights):
            return ()

    with pytest.raises(ContractError, match="Loose: it lacks step; write every method"):
        check_defense(Loose())
    Loose.step = AsyncSgd.step
    with pytest.raises(ContractError, match=r"Loose: it can change .* @dataclass\(frozen=True\)"):
        check_defense(Loose())


@pytest.mark.parametrize("given", [3, None, nn.Linear(1, 1), Kardam(), "sign_flip"])
def test_what_is_no_attack_is_told(given):
    with pytest.raises(ContractError) as caught:
        check_attack(given)
    assert "it lacks " in str(caught.value) or "is a text" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("defense", "kardam", "from_mapping({'defense': 'kardam'})"),
        ("defense", Kardam, "give Kardam()"),
        ("attack", "sign_flip", "from_mapping({'attack': 'sign_flip'})"),
        ("task", "cifar10", "from_mapping({'task': 'cifar10'})"),
        ("attack", 3, "give an object with the methods of Attack"),
    ],
)
def test_experiment_given_a_name_says_how_to_give_the_plug_in(field, value, remedy):
    with pytest.raises(ConfigError) as caught:
        Experiment(**{field: value})
    said = str(caught.value)
    assert said.startswith(f"{field} = ")
    assert remedy in said
    assert "\n" not in said
