import numpy as np
import pytest
from defending import START, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.fed_async import FedAsyncServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import FedAsync

WEIGHTINGS = ["constant", "polynomial", "hinge"]


def side_by_side(mixing=0.6, weighting="polynomial", exponent=0.5, start=4, slope=10.0):
    settings = mixing, weighting, exponent, start, slope
    return SideBySide(FedAsync(*settings), 5, FedAsyncServer(*settings))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@given(
    stream=streams(5),
    mixing=st.sampled_from([0.1, 0.6, 1.0]),
    exponent=st.sampled_from([0.0, 0.5, 2.0]),
    start=st.integers(0, 5),
)
def test_streams_agree_with_the_oracle(weighting, stream, mixing, exponent, start):
    side_by_side(mixing, weighting, exponent, start).play(stream)


def test_full_mixing_of_a_fresh_upload_is_one_plain_step():
    both, upload = side_by_side(mixing=1.0, weighting="constant"), np.array([1.0, -2.0, 0.5, 3.0])
    both.arrive(0, 0, upload)
    np.testing.assert_allclose(both.models[-1].numpy(), START - 0.05 * upload, rtol=1e-12)


def test_full_mixing_of_a_stale_upload_returns_to_its_base():
    both = side_by_side(mixing=1.0, weighting="constant")
    both.arrive(0, 0, np.full(4, 5.0))
    both.arrive(1, 1, np.zeros(4))
    np.testing.assert_allclose(both.models[-1].numpy(), START, rtol=1e-12)


@pytest.mark.parametrize(
    ("weighting", "staleness", "share"),
    [
        ("constant", 9, 0.6),
        ("polynomial", 0, 0.6),
        ("polynomial", 3, 0.3),
        ("hinge", 4, 0.6),
        ("hinge", 5, 0.6 / 11),
        ("hinge", 7, 0.6 / 31),
    ],
)
def test_staleness_cuts_the_share(weighting, staleness, share):
    both = side_by_side(weighting=weighting)
    for _ in range(staleness):
        both.arrive(0, 0, np.ones(4))
    decision = both.arrive(1, staleness, np.ones(4))
    assert float(decision.scores["weight"]) == pytest.approx(share)


def test_share_does_not_wear_off():
    # Multiplied up over the rounds, as one library does, it would vanish.
    both = side_by_side()
    shares = [float(both.arrive(0, 0, np.ones(4)).scores["weight"]) for _ in range(40)]
    assert shares == [0.6] * 40


@pytest.mark.parametrize(
    "setting",
    [
        {"mixing": 0.0},
        {"mixing": 1.1},
        {"exponent": -1.0},
        {"hinge_start": -1},
        {"hinge_slope": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedAsync(**setting)
