import numpy as np
import pytest
import torch
from defending import START, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.basgd import BasgdServer

from secureafl.core.errors import ConfigError
from secureafl.core.server import Server
from secureafl.defenses import Basgd


def side_by_side(num_clients, malicious_share=0.2, num_buffers=0, rule="median"):
    """The oracle is told what the defaults should come to."""
    malicious = -(-num_clients * int(100 * malicious_share) // 100)
    buffers = num_buffers or max(1, min(2 * malicious + 1, num_clients // 2))
    trimmed = min(malicious, (buffers - 1) // 2) if rule == "trimmed_mean" else None
    defense = Basgd(malicious_share, num_buffers, rule)
    return SideBySide(defense, num_clients, BasgdServer(buffers, trimmed))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@given(stream=streams(7, min_size=20, max_size=80), num_buffers=st.integers(0, 7))
def test_streams_agree_with_the_oracle(rule, stream, num_buffers):
    side_by_side(7, 0.2, num_buffers, rule).play(stream)


@pytest.mark.parametrize(
    ("clients", "share", "buffers"), [(50, 0.2, 21), (50, 0.4, 25), (10, 0.1, 3), (5, 0.2, 2)]
)
def test_default_is_two_b_plus_one_buffers_at_most_half_the_clients(clients, share, buffers):
    assert len(Basgd(share).init(clients, torch.zeros(3)).count) == buffers


def test_trimmed_mean_drops_b_buffers_at_each_end():
    both = side_by_side(7, malicious_share=0.2, num_buffers=7, rule="trimmed_mean")
    for client, value in enumerate([0.0, 0.0, 1.0, 2.0, 6.0, 100.0, 100.0]):
        decision = both.arrive(client, 0, np.full(4, value))
    assert torch.equal(decision.direction, torch.full((4,), 3.0, dtype=torch.float64))


def test_lone_client_has_a_buffer():
    assert len(Basgd().init(1, torch.zeros(3)).count) == 1


def test_step_waits_for_every_buffer():
    both = side_by_side(6, num_buffers=3)
    ready = [bool(both.arrive(client, 0, np.ones(4)).ready) for client in (0, 3, 1, 4, 0, 2, 5)]
    assert ready == [False, False, False, False, False, True, False]
    assert np.array_equal(both.models[5].numpy(), START)


def test_buffer_averages_what_it_received_since_the_last_step():
    both = side_by_side(2, malicious_share=0.0, num_buffers=2)
    for client, value in [(0, 1.0), (0, 2.0), (0, 6.0), (1, 5.0)]:
        decision = both.arrive(client, 0, np.full(4, value))
    assert torch.equal(decision.direction, torch.full((4,), 4.0, dtype=torch.float64))
    both.arrive(0, 0, np.full(4, 10.0))
    decision = both.arrive(1, 0, np.full(4, 20.0))
    assert torch.equal(decision.direction, torch.full((4,), 15.0, dtype=torch.float64))


def test_emptied_buffer_leaves_no_trace():
    both = side_by_side(2, malicious_share=0.0, num_buffers=2)
    for client in (0, 1):
        both.arrive(client, 0, np.full(4, 1e17))
    both.arrive(0, 0, np.full(4, 0.1))
    decision = both.arrive(1, 0, np.full(4, 0.3))
    np.testing.assert_allclose(decision.direction.numpy(), 0.2, rtol=1e-15)


def test_b_malicious_clients_do_not_reach_the_median():
    both = side_by_side(10, malicious_share=0.2)
    decisions = []
    for client in range(10):
        upload = np.full(4, 1e6 if client in (0, 5) else 1.0)  # both write to buffer 0
        decisions.append(both.arrive(client, 0, upload))
    steps = [decision.direction for decision in decisions if decision.ready]
    assert len(steps) == 2
    assert all(torch.equal(step, torch.ones(4, dtype=torch.float64)) for step in steps)


def test_uniform_arrivals_need_as_many_uploads_as_a_collector():
    both = side_by_side(50, num_buffers=5)
    rng, steps = np.random.default_rng(0), 0
    for _ in range(1000):
        steps += bool(both.arrive(int(rng.integers(50)), 0, np.zeros(4)).ready)
    expected = 5 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    assert 1000 / steps == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "setting", [{"malicious_share": 0.5}, {"malicious_share": -0.1}, {"num_buffers": -1}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Basgd(**setting)


def test_more_buffers_than_clients_are_refused_before_the_first_arrival():
    with pytest.raises(ConfigError, match="num_buffers = 6: give at most the number of clients, 5"):
        Server(Basgd(num_buffers=6), 5, 0.05).start(torch.zeros(3))
