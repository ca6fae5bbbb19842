import numpy as np
import pytest
import scipy.fft
import torch
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference.freq_fed import cosine_transform, freq_fed, padded

from secureafl.aggregators import FreqFed
from secureafl.aggregators.freq_fed import low_frequencies


@given(crowds(dims=(1, 2, 3, 7, 8, 15, 31), kinds=("plain", "twins", "huge", "tiny")))
def test_freq_fed_equals_its_oracle(crowd):
    assert_close(aggregated(FreqFed(), *crowd), freq_fed(crowd.rows), crowd)


@pytest.mark.parametrize(
    ("size", "length"), [(1, 1), (2, 2), (3, 3), (7, 8), (15, 15), (1001, 1024), (1013, 1024)]
)
def test_transform_equals_the_formula_and_scipy(size, length):
    rows = np.random.default_rng(size).normal(size=(3, size))
    found = low_frequencies(torch.from_numpy(rows)).numpy()
    assert found.shape == (3, (length + 1) // 2)
    rows = padded(rows)
    full = scipy.fft.dct(rows, norm="ortho")
    np.testing.assert_allclose(found, full[:, : found.shape[1]], atol=1e-12)
    np.testing.assert_allclose(cosine_transform(rows), full, atol=1e-10)


def test_transform_of_large_models_is_precise_in_float32():
    rows = torch.randn(2, 139_960, generator=torch.Generator().manual_seed(0))
    found, exact = low_frequencies(rows), low_frequencies(rows.double())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


def test_high_frequencies_do_not_matter():
    rng = np.random.default_rng(0)
    spectra = rng.normal(size=64) + rng.normal(size=(9, 64))
    loud = spectra.copy()
    loud[:, 32:] += 1e3 * rng.normal(size=(9, 32))
    quiet, loud = (scipy.fft.idct(x, norm="ortho") for x in (spectra, loud))
    # Nine rows span nine dimensions: the shares of the mean say who was admitted.
    admitted, expected = (
        np.linalg.lstsq(v.T, aggregated(FreqFed(), v, everybody(9)), rcond=None)[0]
        for v in (loud, quiet)
    )
    np.testing.assert_allclose(admitted, expected, atol=1e-9)
    assert 5 <= (admitted > 0.01).sum() < 9, "somebody must have been left out"


def test_who_points_elsewhere_is_left_out():
    values = with_outliers(honest=11, outliers=9, size=100, distance=1.0)
    found = aggregated(FreqFed(), values, everybody(20))
    np.testing.assert_allclose(found, values[:11].mean(axis=0), rtol=1e-9)
