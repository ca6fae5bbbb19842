import pytest

from secureafl.bench.cases import Case, Scope, read_numbers
from secureafl.core.errors import ConfigError


def test_memory_is_two_vectors_and_two_more_per_pair_of_every_client():
    assert Case(50, 139_960, 3).memory_bytes == 50 * 8 * 139_960 * 4
    assert Case(50, 139_960).memory_bytes == 0


def test_main_case_takes_the_first_of_each_and_the_default_buffer():
    assert Scope((50, 100), (9, 5), (1, 3, 5)).main == Case(50, 9, 3)
    assert Scope((50,), (9,), (5, 1)).main == Case(50, 9, 5)


def test_every_other_case_is_measured_once_the_cheapest_first():
    scope = Scope((2, 4, 3), (10, 20), (1, 3))
    assert scope.other_buffers == [Case(2, 10, 1)]
    assert scope.other_sizes == [
        Case(n, d, 3) for n, d in ((3, 10), (2, 20), (4, 10), (3, 20), (4, 20))
    ]


def test_quick_measures_the_main_case_alone():
    scope = Scope((2, 4), (10, 20), (1, 3), quick=True)
    assert (scope.other_buffers, scope.other_sizes) == ([], [])


def test_numbers_are_read_in_order_and_once():
    assert read_numbers("--clients", " 50, 100,50,", 1000) == (50, 100)


@pytest.mark.parametrize(
    "text", ["", ",", "0", "-3", "1.5", "fifty", "50,x", "50;100", "1001", "²"]
)
def test_what_is_no_list_of_numbers_is_refused_with_its_value_and_a_remedy(text):
    with pytest.raises(ConfigError, match="give whole numbers from 1 to 1,000") as refused:
        read_numbers("--clients", text, 1000)
    assert str(refused.value).startswith(f"--clients = {text!r}")
