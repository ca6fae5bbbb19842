"""The red team from Python: a search, and what it found."""

import math

import pytest
from redteam.small import engine_here
from simulation.small import tiny

import secureafl
from secureafl.core.errors import ConfigError, NoRunError, RunError
from secureafl.library import running

BUDGET = 3


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of a few attacks, whose runs are made in this process."""
    out = tmp_path_factory.mktemp("redteam") / "search"

    def again(**changes):
        given = {"budget": BUDGET, "seeds": [101], "out": out, **changes}
        return secureafl.red_team("kardam", tiny(rounds=12), **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "find_engine", lambda name: engine_here)
        yield again(), again


def test_result_is_what_the_search_found(searched):
    result, _ = searched
    assert [*result.metrics] == ["ter", "without_attack"]
    assert 0 <= result.metrics["ter"] <= 1
    assert result.metrics["ter"] == result.outcome["worst"]["held_out"]["mean"]
    assert len(result.history) == BUDGET
    assert result.history["number"].tolist() == [1, 2, 3]
    assert result.history["held_out"].max() == result.metrics["ter"]
    assert "kardam" in repr(result)
    assert result.attack["kind"] in repr(result)


def test_worst_attack_can_be_run_again(searched):
    result, _ = searched
    made = result.experiment
    assert made.seed == 101
    assert secureafl.from_mapping({"attack": result.attack}).attack == made.attack
    late = result.outcome["worst"]["held_out"]["seeds"]["101"]
    assert result.worst.summary["metrics"]["ter"]["late_mean"] == late


def test_figure_shows_the_worst_score_over_the_budget(searched):
    (axis,) = searched[0].plot().axes
    assert axis.get_xlabel() == "attacks tried"
    assert axis.get_ylabel() == "TER"
    assert axis.lines[0].get_xdata().tolist() == [1, 2, 3]


def test_notebooks_get_a_table_and_a_picture_of_a_search(searched):
    result, _ = searched
    page = result._repr_html_()
    assert f"<td>{result.attack['kind']}</td>" in page
    assert "data:image/png;base64," in page


def test_same_call_returns_the_finished_search_and_another_is_refused(searched):
    result, again = searched
    assert again().outcome == result.outcome
    with pytest.raises(RunError, match="another search"):
        again(search_seed=7)


def test_search_that_was_not_finished_is_told(tmp_path):
    with pytest.raises(NoRunError, match="no finished search"):
        secureafl.RedTeamResult(tmp_path)


def test_share_of_the_clients_is_the_callers_if_given():
    with pytest.raises(ConfigError, match=r"malicious = 0\.9"):
        secureafl.red_team("kardam", tiny(), malicious=0.9)


def test_diverged_score_is_infinite(searched):
    result = secureafl.RedTeamResult(searched[0].path)
    result.outcome["worst"]["held_out"]["mean"] = "diverged"
    assert result.metrics["ter"] == math.inf
