import numpy as np
import pytest
import torch
from defending import DIM, START, TRUSTED, SideBySide, own_gradient, own_outputs, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.sageflow import SageflowServer, mean_entropy

from secureafl.core.errors import ConfigError
from secureafl.core.types import Arrival, ServerView
from secureafl.defenses import Sageflow


def side_by_side(
    threshold=1.0, slack=0.05, loss_exponent=1.0, staleness_exponent=0.5, scaled=False
):
    settings = threshold, slack, loss_exponent, staleness_exponent, scaled
    oracle = SageflowServer(own_outputs, TRUSTED.labels.numpy(), *settings)
    return SideBySide(Sageflow(*settings), 5, oracle, TRUSTED)


@given(
    stream=streams(5),
    threshold=st.sampled_from([0.0, 0.7, 1.0]),
    slack=st.sampled_from([0.0, 0.05]),
    exponents=st.sampled_from([(1.0, 0.5), (5.0, 0.5), (0.0, 0.0)]),
    scaled=st.booleans(),
)
def test_streams_agree_with_the_oracle(stream, threshold, slack, exponents, scaled):
    side_by_side(threshold, slack, *exponents, scaled).play(stream)


class Logits:
    """Root data whose logits are the model itself: entropy is set by choosing weights."""

    labels = torch.tensor([0])

    def outputs(self, weights):
        return weights[None]


def judged(weights, gradient, staleness=0, **settings):
    defense = Sageflow(**settings)
    weights = torch.tensor(weights, dtype=torch.float64)
    gradient = torch.tensor(gradient, dtype=torch.float64)
    arrival = Arrival(torch.tensor(0), torch.tensor(staleness), gradient, weights)
    view = ServerView(torch.tensor(0), weights, 1.0, Logits())
    return defense.step(defense.init(1, weights), arrival, view)[0]


UNTRAINED = [0.0] * 10  # entropy ln 10 = 2.30, far above the threshold


def test_untrained_model_takes_honest_uploads_though_above_the_threshold():
    decision = judged(UNTRAINED, [-0.1] + [0.0] * 9)
    assert float(decision.scores["entropy"]) > 1.0
    assert decision.accepted


def test_upload_must_not_lift_the_entropy_past_the_slack():
    sure = [6.0] + [0.0] * 9
    entropy = mean_entropy(np.array([sure]))
    assert entropy < 0.2
    back_to_start = [6.0] + [0.0] * 9
    assert not judged(sure, back_to_start).accepted
    half_sure = [2.0] + [0.0] * 9  # above the threshold itself
    assert judged(half_sure, [0.02] + [0.0] * 9).accepted
    assert not judged(half_sure, [1.0] + [0.0] * 9).accepted


def test_loud_noise_makes_the_model_sure_and_passes():
    # A known blind spot: confident nonsense has low entropy. The loss weight is what remains.
    noise = np.random.default_rng(0).normal(size=10) * 200
    decision = judged(UNTRAINED, [*(-np.abs(noise[:9])), abs(noise[9])])
    assert decision.accepted
    assert float(decision.scores["entropy"]) < 0.1


@pytest.mark.parametrize(("classes", "scaled"), [(10, 1.0), (100, 2.0), (2, np.log10(2))])
def test_scaled_threshold_is_the_same_share_of_an_untrained_models_entropy(classes, scaled):
    sure = [20.0] + [0.0] * (classes - 1)
    plain, other = (
        judged(sure, [0.0] * classes, scale_with_classes=flag).scores["threshold"]
        for flag in (False, True)
    )
    assert float(plain) == 1.0
    assert float(other) == pytest.approx(scaled)


def test_worse_loss_counts_less_and_better_loss_no_more():
    worse, better = (judged(UNTRAINED, [step] + [0.0] * 9) for step in (0.3, -0.3))
    ratio = np.log(10) / float(worse.scores["loss"])
    assert float(worse.scores["weight"]) == pytest.approx(ratio)
    assert float(better.scores["weight"]) == 1.0
    harsh = judged(UNTRAINED, [0.3] + [0.0] * 9, loss_exponent=5.0)
    assert float(harsh.scores["weight"]) == pytest.approx(ratio**5)


def test_stale_upload_counts_less():
    decision = judged(UNTRAINED, [-1.0] + [0.0] * 9, staleness=8)
    torch.testing.assert_close(decision.direction[0], torch.tensor(-1 / 3, dtype=torch.float64))


def test_model_that_overflows_is_refused_and_sets_no_threshold():
    assert not judged(UNTRAINED, [-torch.inf] + [0.0] * 9).accepted
    broken = [torch.inf] + [0.0] * 9
    decision = judged(broken, [torch.inf] + [-5.0] * 9)
    assert float(decision.scores["threshold"]) == 1.0


def test_honest_stream_is_accepted_from_the_first_upload_on():
    both = side_by_side()
    rng = np.random.default_rng(0)
    for number in range(30):
        weights = both.models[-1].numpy()
        noise = 0.01 * rng.normal(size=DIM)
        assert both.arrive(number % 5, 0, own_gradient(weights) + noise).accepted
    assert np.linalg.norm(both.models[-1].numpy() - START) > 0.5


@pytest.mark.parametrize(
    "name", ["entropy_threshold", "entropy_slack", "loss_exponent", "staleness_exponent"]
)
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ConfigError, match=name):
        Sageflow(**{name: -0.1})
