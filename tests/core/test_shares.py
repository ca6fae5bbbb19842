from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.shares import whole_clients


@pytest.mark.parametrize(
    ("share", "clients", "count"),
    [
        (0.2, 5, 1),
        (0.2, 50, 10),
        (0.2, 6, 2),
        (0.1, 3, 1),
        (0.0, 7, 0),
        (0.3, 10, 3),
        (0.07, 100, 7),
    ],
)
def test_share_is_rounded_up_to_whole_clients(share, clients, count):
    assert whole_clients(share, clients) == count


@given(hundredths=st.integers(0, 100), clients=st.integers(1, 5000))
def test_decimal_shares_are_exact(hundredths, clients):
    exact = Fraction(hundredths, 100) * clients
    assert whole_clients(hundredths / 100, clients) == -(-exact.numerator // exact.denominator)
