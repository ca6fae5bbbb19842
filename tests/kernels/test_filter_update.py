"""The Lipschitz filter, its clipping, and the places of L-BFGS pairs."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from reference.lipschitz_filter import LipschitzFilter

from secureafl.core.types import SecantProducts
from secureafl.kernels import reference
from secureafl.linalg.quantile import no_history

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["reference", "cpu"])
def version(request):
    if request.param == "reference":
        return reference
    pytest.importorskip("llvmlite")
    from secureafl.kernels import cpu

    return cpu


def secant(known, step, cross, change, squared):
    numbers = (torch.tensor(x, dtype=torch.float64) for x in (step, cross, change, squared))
    return SecantProducts(torch.tensor(known), *numbers)


# Of float32 vectors that the server takes: nothing between 0 and a square of the smallest.
squares = st.one_of(st.sampled_from([0.0, 1e-90, 1.0, 4.0, 1e36]), st.floats(1e-90, 1e36))
uploads = st.lists(st.tuples(st.booleans(), squares, squares, squares), max_size=25)


@given(
    uploads=uploads,
    window=st.integers(0, 4),
    level=st.sampled_from([0.05, 0.5, 0.8, 1.0]),
    radius=st.sampled_from([1e-3, 1.0, 50.0, np.inf]),
)
@example([(True, 1.0, 1.0, 1.0)] * 5, 0, 0.8, 50.0)  # ties pass
def test_upload_is_filtered_as_numpy_says(version, uploads, window, level, radius):
    history, oracle = no_history(window, CPU), LipschitzFilter(level, window)
    for known, step, change, squared in uploads:
        filtered, history = version.filter_update(
            history, secant(known, step, 0.0, change, squared), radius, level
        )
        defined = known and step > 0
        if defined:
            oracle.add(np.sqrt(change / step))
            assert float(filtered.factor) == pytest.approx(np.sqrt(change / step), rel=1e-12)
        else:
            assert torch.isnan(filtered.factor)
        threshold = float(filtered.threshold)
        assert threshold == pytest.approx(oracle.threshold, rel=1e-12)
        assert bool(filtered.accepted) == (not defined or float(filtered.factor) <= threshold)
        clipped = not known and squared > radius * radius
        expected = radius / np.sqrt(squared) if clipped else 1.0
        assert float(filtered.scale) == pytest.approx(expected, rel=1e-12)
        assert clipped or float(filtered.scale) == 1
        assert filtered.accepted.dtype == torch.bool
        assert all(number.dtype == torch.float64 for number in filtered[1:])
        assert all(number.shape == () for number in filtered)


@given(uploads=uploads, window=st.integers(0, 4))
def test_both_versions_filter_alike(uploads, window):
    cpu = pytest.importorskip("secureafl.kernels.cpu")
    one, other = no_history(window, CPU), no_history(window, CPU)
    for known, step, change, squared in uploads:
        upload = secant(known, step, 0.0, change, squared)
        found, one = cpu.filter_update(one, upload, 2.0, 0.8)
        expected, other = reference.filter_update(other, upload, 2.0, 0.8)
        assert bool(found.accepted) == bool(expected.accepted)
        for a, b in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-15, atol=0, equal_nan=True)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_first_upload_of_norm_zero_is_taken_as_it_is(version):
    filtered, history = version.filter_update(
        no_history(0, CPU), secant(False, 0.0, 0.0, 0.0, 0.0), 5.0, 0.8
    )
    assert filtered.accepted
    assert float(filtered.scale) == 1
    assert float(filtered.threshold) == np.inf
    assert int(history.count) == 0


@pytest.mark.parametrize("radius", [1e200, 1e308])
def test_radius_beyond_any_norm_clips_nothing(version, radius):
    filtered, _ = version.filter_update(
        no_history(0, CPU), secant(False, 0.0, 0.0, 0.0, 1e36), radius, 0.8
    )
    assert float(filtered.scale) == 1


def test_judging_modifies_no_number_of_the_upload(version):
    upload = secant(True, 1.0, 2.0, 3.0, 4.0)
    copies = [number.clone() for number in upload]
    version.filter_update(no_history(0, CPU), upload, 1.0, 0.8)
    appended, client, keep = torch.zeros(2, dtype=torch.int64), torch.tensor(1), torch.tensor(True)
    version.place_pair(appended, client, upload, keep, 3, 1e-3)
    assert all(torch.equal(a, b) for a, b in zip(upload, copies, strict=True))
    assert int(client) == 1
    assert bool(keep)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("step", "cross", "bound", "curved"),
    [
        (1.0, 1.0, 1e-3, True),
        (1.0, 1e-3, 1e-3, False),  # not above the bound
        (4.0, 0.5, 0.1, True),
        (4.0, 0.3, 0.1, False),
        (1.0, -1.0, 1e-3, False),
        (1.0, -1.0, -2.0, True),
        (1.0, -1.0, -np.inf, True),
        (0.0, 0.0, 1e-3, False),  # a step of zero never is
        (0.0, 0.0, -np.inf, False),
        (1.0, 1e30, np.inf, False),
    ],
)
@pytest.mark.parametrize("pairs", [1, 3])
def test_pair_with_clear_curvature_gets_the_next_place_of_its_clients_ring(
    version, known, keep, step, cross, bound, curved, pairs
):
    for before in range(2 * pairs + 1):
        appended = torch.tensor([7, before, 8])
        upload = secant(known, step, cross, 1.0, 1.0)
        places, found = version.place_pair(
            appended, torch.tensor(1), upload, torch.tensor(keep), pairs, bound
        )
        assert places.dtype == torch.int64
        assert places.tolist() == [before % pairs, before % pairs + pairs]
        assert found.dtype == torch.bool
        assert found.shape == ()
        assert bool(found) == (known and curved)
        assert appended.tolist() == [7, before + (known and curved and keep), 8]
