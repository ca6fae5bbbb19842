from dataclasses import dataclass, field

import pytest
import torch

from secureafl.core.errors import ConfigError
from secureafl.core.server import Server
from secureafl.core.traits import has_trait
from secureafl.defenses import DEFENSES, AsyncSgd, Kardam


@dataclass(frozen=True)
class Rule:
    needs_root_data = True


@dataclass(frozen=True)
class Outer:
    rule: object = field(default_factory=Rule)
    buffering: bool = False  # a setting that happens to have a trait's name

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        raise NotImplementedError


def test_what_is_not_stated_is_false():
    assert not has_trait(AsyncSgd(), "needs_root_data")
    assert not has_trait(7, "buffering")
    assert not has_trait(Outer(), "buffering")


def test_trait_is_no_setting_and_is_inherited_by_what_uses_the_part():
    assert has_trait(Kardam(), "needs_malicious")
    assert "needs_malicious" not in Kardam().__dict__
    assert has_trait(Outer(), "needs_root_data")
    assert not has_trait(Outer(rule=AsyncSgd()), "needs_root_data")


def test_each_built_in_defence_states_what_it_needs():
    stated = {
        kind: [
            t for t in ("needs_root_data", "needs_malicious", "buffering") if has_trait(cls(), t)
        ]
        for kind, cls in DEFENSES.items()
    }
    assert {kind: traits for kind, traits in stated.items() if traits} == {
        "aflguard": ["needs_root_data"],
        "async_filter": ["buffering"],
        "basgd": ["needs_malicious", "buffering"],
        "catalyst": ["needs_malicious", "buffering"],
        "fed_buff": ["buffering"],
        "kardam": ["needs_malicious"],
        "sageflow": ["needs_root_data"],
        "weighted_ctma": ["needs_malicious"],
        "zeno_pp": ["needs_root_data"],
    }


@pytest.mark.parametrize("kind", ["aflguard", "sageflow", "zeno_pp"])
def test_server_without_trusted_samples_is_refused_before_the_first_arrival(kind):
    server = Server(DEFENSES[kind](), 5, 0.05)
    with pytest.raises(ConfigError, match=r"needs root data: give Server\(..., root_data=...\)"):
        server.start(torch.zeros(3))


def test_part_that_needs_trusted_samples_makes_the_whole_need_them():
    with pytest.raises(ConfigError, match="Outer needs root data"):
        Server(Outer(), 5, 0.05).start(torch.zeros(3))
