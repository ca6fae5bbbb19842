import numpy as np
import pytest
import torch
from defending import DIM, START, TRUSTED, SideBySide, own_gradient, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.zeno_pp import ZenoPpServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import ZenoPp

for_both_forms = pytest.mark.parametrize("form", ["cosine", "score"])


def side_by_side(form="cosine", penalty=0.01, slack=0.0):
    oracle = ZenoPpServer(own_gradient, form, penalty, slack)
    return SideBySide(ZenoPp(form, penalty, slack), 5, oracle, TRUSTED)


@for_both_forms
@given(
    stream=streams(5),
    penalty=st.sampled_from([0.0, 0.01, 0.5]),
    slack=st.sampled_from([0.0, 0.1, 2.0]),
)
def test_streams_agree_with_the_oracle(form, stream, penalty, slack):
    side_by_side(form, penalty, slack).play(stream)


@for_both_forms
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_accepted_upload_gets_the_length_of_the_servers_gradient(form, factor):
    own = own_gradient(START)
    decision = side_by_side(form).arrive(0, 0, factor * own)
    assert decision.accepted
    np.testing.assert_allclose(decision.direction.numpy(), own, rtol=1e-9)


def at_cosine(value):
    """An upload with that cosine to the server's gradient."""
    own = own_gradient(START)
    unit = own / np.linalg.norm(own)
    across = np.eye(DIM)[0] - unit[0] * unit
    return value * unit + np.sqrt(1 - value**2) * across / np.linalg.norm(across)


def test_cosine_form_asks_for_a_positive_cosine():
    assert side_by_side().arrive(0, 0, at_cosine(1e-6)).accepted
    assert not side_by_side().arrive(0, 0, at_cosine(-1e-6)).accepted


@pytest.mark.parametrize(("cosine", "passes"), [(0.02, True), (0.009, False), (-0.5, False)])
def test_score_form_asks_for_a_cosine_above_the_penalty(cosine, passes):
    # The penalty is on the rescaled upload; on the length it came with, a short one would pass.
    for length in (1e-6, 1.0, 1e6):
        decision = side_by_side("score").arrive(0, 0, length * at_cosine(cosine))
        assert bool(decision.accepted) == passes


def test_slack_lets_a_slightly_opposed_upload_pass():
    upload = at_cosine(-0.1)
    assert not side_by_side("score").arrive(0, 0, upload).accepted
    assert side_by_side("score", slack=10.0).arrive(0, 0, upload).accepted


def test_tiny_upload_is_lengthened_without_overflow():
    both = side_by_side()
    upload = torch.full((DIM,), 1e-44, dtype=torch.float32).double().numpy()
    decision = both.arrive(0, 0, upload * np.sign(own_gradient(START)))
    assert decision.accepted
    assert torch.isfinite(decision.direction).all()
    assert decision.direction.abs().sum() > 0


@pytest.mark.parametrize("setting", [{"penalty": -0.1}, {"slack": -1.0}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        ZenoPp(**setting)
