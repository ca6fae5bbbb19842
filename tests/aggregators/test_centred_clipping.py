import numpy as np
import pytest
import torch
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from hypothesis import strategies as st
from reference import centred_clipping as oracle

from secureafl.aggregators import CentredClipping
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize(("radius", "iterations"), [(0.0, 1), (0.0, 3), (0.7, 1), (2.0, 2)])
@given(many=st.lists(crowds(dims=(3,), kinds=("plain", "ties", "twins")), min_size=1, max_size=5))
def test_centred_clipping_equals_its_oracle_call_after_call(radius, iterations, many):
    rule, expected = (
        CentredClipping(radius, iterations),
        oracle.CentredClipping(3, radius, iterations),
    )
    state = rule.init(14, torch.zeros(3, dtype=torch.float64))
    for crowd in many:
        values, present = map(torch.from_numpy, crowd)
        found, state = rule.aggregate(state, values, present)
        assert_close(found, expected.aggregate(crowd.rows), crowd)


@given(crowd=crowds(kinds=("huge", "tiny")))
def test_automatic_radius_knows_no_scale(crowd):
    found = aggregated(CentredClipping(), *crowd)
    assert_close(found, oracle.CentredClipping(found.size, 0.0, 1).aggregate(crowd.rows), crowd)


def test_one_client_moves_the_result_by_at_most_its_share_of_the_radius():
    calm = with_outliers(outliers=0, honest=10)
    wild = calm.copy()
    wild[3] = 1e19
    one, other = (aggregated(CentredClipping(0.5), v, everybody(10)) for v in (calm, wild))
    assert np.linalg.norm(one - other) <= 2 * 0.5 / 10 + 1e-12


def test_call_after_call_the_centre_finds_the_honest_crowd():
    values = with_outliers(distance=1e15)
    middle = values[:16].mean(axis=0)
    away = [
        np.linalg.norm(aggregated(CentredClipping(), values, everybody(20), calls=calls) - middle)
        for calls in (1, 20)
    ]
    assert away[1] < 0.5 * away[0]
    assert away[1] < 1.0


def test_nobody_present_leaves_the_centre():
    rule, centre = CentredClipping(), torch.tensor([1.0, 2.0])
    found, after = rule.aggregate(centre, torch.full((3, 2), 9.0), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(found, centre)
    assert torch.equal(after, centre)


@pytest.mark.parametrize("settings", [{"radius": -1.0}, {"iterations": 0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        CentredClipping(**settings)
