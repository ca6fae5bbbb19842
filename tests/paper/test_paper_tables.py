import math

import pytest

from secureafl.attacks import ATTACKS
from secureafl.defenses import DEFENSES
from secureafl.paper import tables


@pytest.mark.parametrize("task", tables.tasks())
def test_every_main_table_uses_names_that_exist(task):
    table = tables.main_table(task)
    assert set(table) <= set(DEFENSES)
    assert set().union(*table.values()) <= set(ATTACKS)
    expected = {"rmse"} if task == "udacity" else {"ter", "asr"}
    assert {
        metric for row in table.values() for cell in row.values() for metric in cell
    } == expected


def test_fashion_mnist_has_eight_methods_under_ten_attacks_and_none():
    table = tables.main_table("fashion_mnist")
    assert len(table) == 8
    assert {len(row) for row in table.values()} == {11}
    assert table["secure_afl"]["scaling"] == {"ter": 0.18, "asr": 0.07}
    assert table["async_defender"]["adaptive"] == {"ter": 0.43}


def test_udacity_has_neither_sageflow_nor_backdoors():
    table = tables.main_table("udacity")
    assert "sageflow" not in table
    assert set(table["secure_afl"]) == {"none", "sign_flip", "gaussian", "min_max", "adaptive"}
    assert set(table["async_defender"]) == set(table["secure_afl"])


def test_default_rows_of_the_ablations_are_the_main_tables():
    main = tables.main_table("fashion_mnist")["secure_afl"]
    assert tables.alpha_table()["0.8"] == main == tables.variants_table()["secure_afl"]
    assert list(tables.variants_table()) == ["I", "II", "III", "IV", "secure_afl"]


def test_windows_of_the_estimation_error_follow_each_other():
    windows = tables.estimation_error()
    assert [w.end for w in windows[:-1]] == [w.first for w in windows[1:]]
    assert windows[-1].end is None
    assert windows[0].error == 0.81


@pytest.mark.parametrize("task", tables.tasks())
def test_every_figure_is_a_number(task):
    """Infinite where the paper's method diverged: pages and comparisons take it as it is."""
    rows = tables.main_table(task).values()
    found = [figure for row in rows for cell in row.values() for figure in cell.values()]
    assert found
    assert all(isinstance(figure, float) and figure >= 0 for figure in found)
    assert (math.inf in found) == (task == "udacity")
