import numpy as np
import pytest
from defending import CENTRES, DIM, HESSIAN, SideBySide
from reference.fl_detector import FlDetectorServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import FlDetector

CLIENTS = 8
MALICIOUS = (2, 5)


def side_by_side(window=10, buffer_size=2):
    oracle = FlDetectorServer(CLIENTS, window, buffer_size)
    return SideBySide(FlDetector(window, buffer_size), CLIENTS, oracle)


def play(both, arrivals, hostile, seed=0, lags=4, noise=0.02):
    """Mostly honest uploads; what MALICIOUS clients send is `hostile` of the honest one."""
    rng = np.random.default_rng(seed)
    decisions = []
    for _ in range(arrivals):
        client, lag = int(rng.integers(CLIENTS)), int(rng.integers(lags))
        base = both.models[max(0, both.state.round - lag)].numpy()
        upload = HESSIAN * (base - CENTRES[client % 5]) + noise * rng.normal(size=DIM)
        if client in MALICIOUS:
            upload = hostile(upload, rng)
        decisions.append((client, both.arrive(client, lag, upload)))
    return decisions


HOSTILE = {
    "honest": lambda upload, rng: upload,
    "flipped": lambda upload, rng: -upload,
    "noisy": lambda upload, rng: upload + 3 * rng.normal(size=DIM),
    "silent": lambda upload, rng: np.zeros(DIM),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize(("window", "buffer_size"), [(1, 1), (3, 2), (10, 3)])
def test_runs_agree_with_the_oracle(hostile, window, buffer_size):
    play(side_by_side(window, buffer_size), 70, HOSTILE[hostile], seed=window)


def refused_share(decisions, of_malicious):
    late = [d for client, d in decisions[100:] if (client in MALICIOUS) == of_malicious]
    return np.mean([not bool(d.accepted) for d in late])


def test_clients_that_cannot_be_predicted_are_left_out():
    decisions = play(side_by_side(), 180, HOSTILE["noisy"])
    assert refused_share(decisions, of_malicious=True) > 0.95
    assert refused_share(decisions, of_malicious=False) < 0.02
    refused = next(d for _, d in decisions if not d.accepted)
    assert refused.reason == "suspected"
    assert not refused.ready


def test_model_is_learnt_in_spite_of_them():
    both = side_by_side()
    play(both, 250, HOSTILE["noisy"])
    honest = [CENTRES[k % 5] for k in range(CLIENTS) if k not in MALICIOUS]
    far = np.linalg.norm(both.models[0].numpy() - np.mean(honest, axis=0))
    assert np.linalg.norm(both.models[-1].numpy() - np.mean(honest, axis=0)) < 0.2 * far


def test_nobody_is_refused_before_most_clients_have_a_score():
    decisions = play(side_by_side(), 100, HOSTILE["noisy"])
    first = next(number for number, (_, d) in enumerate(decisions) if not d.accepted)
    # A pair after n arrivals, and then three predictions of more than half of the clients.
    assert first >= CLIENTS + 3 * (CLIENTS // 2 + 1)


def test_prediction_follows_the_curvature():
    # With one Hessian for all and enough pairs, honest uploads are predicted nearly exactly.
    both = side_by_side(window=5, buffer_size=4)
    play(both, 150, HOSTILE["honest"], lags=1, noise=0.0)
    state = both.state.defense
    unexplained = np.linalg.norm(
        [float(state.error[k]) for k in range(CLIENTS) if state.count[k] > 0]
    )
    newest = 4 + (int(state.appended) - 1) % 4  # changes come after the steps
    changes = np.linalg.norm(state.pairs[newest].numpy()) / CLIENTS
    assert unexplained / CLIENTS < changes


def test_client_that_reforms_is_taken_again():
    both = side_by_side(window=3)
    play(both, 100, HOSTILE["noisy"])
    decisions = play(both, 180, HOSTILE["honest"], seed=1)
    assert refused_share(decisions, of_malicious=True) < 0.3


@pytest.mark.parametrize("setting", [{"window": 0}, {"buffer_size": 0}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FlDetector(**setting)
