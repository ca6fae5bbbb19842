"""Single arrivals, one rule of the paper at a time."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from defenses.compared import RATE, Comparison, Largest, Options

from secureafl.core.errors import ConfigError
from secureafl.core.protocols import OrderRule
from secureafl.core.types import Arrival, ServerView
from secureafl.defenses import SecureAfl
from secureafl.estimators import LastUpdate
from secureafl.kernels.tiles import GRADIENT, read_client


@dataclass(frozen=True)
class Alternating:
    """A rule of one's own with a memory: by turns the smallest and the largest value."""

    def init(self, num_clients, weights):
        return torch.zeros((), dtype=torch.int64)

    def aggregate(self, state, values, present):
        sign = 1 - 2 * (state % 2)
        lowest = torch.where(present[:, None], sign * values, torch.inf).amin(dim=0)
        return sign * lowest, state + 1


def quiet(estimator="last_update", **settings):
    """A comparison in which client k sends (k + 1) ones by default."""
    return Comparison(Options(estimator, **settings), 4, np.zeros(3), torch.float64, 1e-9)


def test_one_whole_round_is_what_the_formulas_say():
    pair = quiet("lbfgs")
    pair.arrive(0, 0, [1.0, 2.0, 3.0])
    pair.arrive(1, 0, [3.0, 2.0, 1.0])
    decision = pair.arrive(0, 0, [1.0, 1.0, 1.0])
    first, second = -RATE * np.array([1.0, 2.0, 3.0]), -RATE * np.array([2.0, 2.0, 2.0])
    moved = np.linalg.norm(first + second)
    assert float(decision.scores["lipschitz"]) == pytest.approx(np.sqrt(5) / moved)
    # Client 1 has sent once: its estimate is what it sent. The median of two is their mean.
    np.testing.assert_allclose(decision.direction, [2.0, 1.5, 1.0])
    np.testing.assert_allclose(pair.state.weights, first + second - RATE * np.array([2, 1.5, 1]))


def test_first_contact_is_clipped_to_its_norm_and_accepted():
    decision = quiet(clip_norm=5.0).arrive(0, 0, [30.0, 0.0, 40.0])
    assert decision.accepted
    np.testing.assert_allclose(decision.direction, [3.0, 0.0, 4.0])


def test_client_first_seen_late_is_clipped_too():
    pair = quiet(clip_norm=5.0, estimate=False)
    for _ in range(4):
        pair.arrive(0, 0, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(pair.arrive(3, 0, [0.0, 0.0, 500.0]).direction, [0.0, 0.0, 5.0])


def test_second_upload_is_not_clipped():
    pair = quiet(clip_norm=5.0, estimate=False, filter=False)
    pair.arrive(0, 0, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(pair.arrive(0, 0, [0.0, 0.0, 500.0]).direction, [0.0, 0.0, 500.0])


def test_same_base_again_is_accepted_without_a_factor():
    pair = quiet()
    pair.arrive(0, 0, [1.0, 0.0, 0.0])
    decision = pair.arrive(0, 1, [0.0, 9e5, 0.0])
    assert decision.accepted
    assert torch.isnan(decision.scores["lipschitz"])
    assert int(pair.state.defense.factors.count) == 0


def test_older_base_than_last_time_has_a_factor():
    pair = quiet()
    for _ in range(3):
        pair.arrive(0, 0, [1.0, 0.0, 0.0])
    decision = pair.arrive(0, 2, [1.0, 0.5, 0.0])
    assert torch.isfinite(decision.scores["lipschitz"])


def rejecting(**settings):
    """Two calm clients, then a leap of client 0 that no threshold lets pass."""
    pair = quiet(alpha=0.5, **settings)
    for k in range(8):
        pair.arrive(k % 2, 0, [1.0 + k % 2, 0.1 * k, 0.0])
    decision = pair.arrive(0, 0, [1e3, 0.0, 0.0])
    assert not decision.accepted
    assert decision.reason == "lipschitz"
    return pair, decision


def test_rejected_upload_leaves_the_estimates_only():
    _, decision = rejecting()
    np.testing.assert_allclose(decision.direction, [2.0, 0.7, 0.0])  # client 1's last


def test_rejected_upload_without_estimates_leaves_weights_unchanged():
    pair, decision = rejecting(estimate=False)
    assert not decision.ready
    assert torch.equal(pair.models[-1], pair.models[-2])


@pytest.mark.parametrize(
    ("rejected", "reference", "estimated"),
    [("keep", 1e3, 1e3), ("forget", 1.0, 1.0), ("reference", 1e3, 1.0)],
)
def test_rejected_upload_is_remembered_as_asked(rejected, reference, estimated):
    pair, _ = rejecting(rejected=rejected)
    state = pair.state.defense
    remembered = read_client(state.memory.vectors, torch.tensor(0), 3)[GRADIENT]
    assert (state.reference == ()) == (rejected != "reference")  # else the memory is the reference
    compared = state.reference.gradient[0] if state.reference else remembered
    assert float(compared[0]) == reference
    assert float(remembered[0]) == estimated


def test_received_updates_are_ignored_when_asked():
    pair = quiet(use_received=False)
    assert not pair.arrive(0, 0, [1.0, 1.0, 1.0]).ready  # nobody else to estimate yet
    decision = pair.arrive(1, 0, [2.0, 2.0, 2.0])
    np.testing.assert_allclose(decision.direction, [1.0, 1.0, 1.0])


@pytest.mark.parametrize(("stored", "last"), [(True, 3.0), (False, 1.0)])
def test_estimates_can_start_from_first_uploads_for_ever(stored, last):
    pair = quiet(use_received=False, store_received=stored, filter=False)
    pair.arrive(0, 0, [1.0, 1.0, 1.0])
    pair.arrive(0, 0, [3.0, 3.0, 3.0])
    decision = pair.arrive(1, 0, [2.0, 2.0, 2.0])
    np.testing.assert_allclose(decision.direction, [last] * 3)


def test_rule_of_ones_own_needs_no_ranks():
    assert not isinstance(Largest(), OrderRule)
    pair = quiet(aggregator="largest", filter=False)
    pair.arrive(0, 0, [1.0, -5.0, 3.0])
    pair.arrive(1, 0, [2.0, -7.0, 3.0])
    decision = pair.arrive(2, 0, [0.0, -6.0, 4.0])
    np.testing.assert_allclose(decision.direction, [2.0, -5.0, 4.0])


def test_rule_of_ones_own_sees_present_clients_only():
    pair = quiet(aggregator="largest", use_received=False)
    assert not pair.arrive(0, 0, [1.0, 1.0, 1.0]).ready  # over nobody it makes -inf
    assert torch.isfinite(pair.state.weights).all()
    assert torch.isfinite(pair.state.defense.memory.along).all()
    decision = pair.arrive(1, 0, [2.0, 2.0, 2.0])
    np.testing.assert_allclose(decision.direction, [1.0, 1.0, 1.0])


def test_memory_of_a_rule_of_ones_own_is_handed_on():
    defense = SecureAfl(filter=False, estimator=LastUpdate(), aggregator=Alternating())
    weights = torch.zeros(2)
    state, found = defense.init(3, weights), []
    for t, size in enumerate([1.0, 2.0, 3.0, 4.0]):
        gradient = torch.full((2,), size)
        arrival = Arrival(torch.tensor(t % 3), torch.tensor(0), gradient, weights)
        decision, state = defense.step(state, arrival, ServerView(torch.tensor(t), weights, RATE))
        found.append(float(decision.direction[0]))
        weights = weights - RATE * decision.direction
    assert found == [1.0, 2.0, 1.0, 4.0]
    assert int(state.rule) == 4


def test_without_a_filter_every_upload_is_accepted():
    pair = quiet(filter=False, alpha=0.2)
    leaps = np.random.default_rng(0).normal(size=(15, 3)) * 10.0 ** np.arange(15)[:, None] / 1e6
    assert all(pair.arrive(k % 3, 0, leap).accepted for k, leap in enumerate(leaps))


def test_window_forgets_old_factors():
    def threshold_after_calm(window):
        pair = quiet(window=window, alpha=1.0, estimate=False)
        rng = np.random.default_rng(1)
        for k in range(16):
            wild = 1e3 if k < 6 else 1e-3
            decision = pair.arrive(0, 0, np.ones(3) + wild * rng.normal(size=3))
        return float(decision.scores["threshold"])

    assert threshold_after_calm(window=4) < 1 < threshold_after_calm(window=0)


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.0])
def test_share_of_accepted_uploads_follows_alpha(alpha):
    pair = quiet(alpha=alpha, filter=True)
    rng = np.random.default_rng(2)
    verdicts = [bool(pair.arrive(k % 4, 0, rng.normal(size=3)).accepted) for k in range(200)]
    assert np.mean(verdicts) == pytest.approx(alpha, abs=0.12)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0.0},
        {"alpha": 1.1},
        {"clip_norm": 0.0},
        {"window": -1},
        {"estimate": False, "use_received": False},
        {"store_received": False},
    ],
    ids=str,
)
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError, match=r"\w+ = "):
        SecureAfl(**settings)
