"""The bound holds where it must, and the check sees where it does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secureafl.core.errors import ConfigError
from secureafl.reproduce.theory.bound import check, constants_of, margin, promised, sides_of
from secureafl.reproduce.theory.cases import Scope
from secureafl.reproduce.theory.findings import Findings
from secureafl.reproduce.theory.measure import measure
from secureafl.reproduce.theory.problem import Objective
from secureafl.simulation.simulator import Simulation

SMALL = Scope(clients=7, rounds=120)
CASES = {case.name: case for case in SMALL.cases()}
FLOATS = st.floats(-1e3, 1e3)


@pytest.fixture(scope="module")
def findings():
    """What must hold and what must not, with 5 seeds."""
    wanted = (
        "largest-step",
        "most-attackers",
        "exact",
        "step-exact",
        "rule",
    )
    found = Findings(SMALL, range(5))
    for _ in found.gather([CASES[name] for name in wanted]):
        pass
    return found


@pytest.fixture(scope="module")
def run():
    return measure(SMALL.experiment(CASES["largest-step"], seed=1))


@given(st.data(), st.integers(1, 12))
def test_median_is_held_by_the_honest_however_the_others_lie(data, honest):
    attackers = data.draw(st.integers(0, honest - 1))
    values = data.draw(arrays(float, (honest + attackers, 2), elements=FLOATS))
    centre = data.draw(arrays(float, 2, elements=FLOATS))
    away = np.square(np.median(values, axis=0) - centre).sum()
    scatter = np.square(values[:honest] - centre).sum()
    assert away <= scatter / margin(len(values), attackers) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("clients", range(3, 30))
def test_majority_is_the_papers_condition(clients):
    for attackers in range(clients):
        assert (margin(clients - 1, attackers) > 0) == (attackers < (clients - 1) / 2)


def test_median_of_vectors_within_a_ball_can_lie_outside():
    """So the paper's Lemma 1 needs its factor 2 (docs/theory.md)."""
    vectors = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]]) / np.sqrt(2)
    assert np.linalg.norm(vectors, axis=1).max() == pytest.approx(1)
    assert np.square(np.median(vectors, axis=0)).sum() == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["largest-step", "most-attackers", "exact"])
def test_bound_and_every_link_of_its_proof_hold_with_five_seeds(findings, name):
    results = findings.of(CASES[name])
    assert [result.seed for result in results] == list(range(5))
    for result in results:
        assert all(result.holds), (result.seed, result.holds)
        assert result.constants.small_step
        assert result.constants.honest_majority
        assert result.end.left <= result.end.mean <= result.end.track <= result.end.explicit


def test_runs_inside_get_somewhere(run):
    """Or the bound would be kept by saying nothing."""
    start = Simulation(run.experiment).weights.double().numpy()
    pull = run.objective.pulls[run.objective.honest].mean(axis=0)
    before = np.square(run.objective.hessian @ start - pull).sum()
    assert run.rounds.gradient[-30:].mean() < before / 20
    assert not run.diverged


def test_with_too_large_a_step_the_right_side_is_passed_even_without_any_error(findings):
    """On |w|^2 with eta L = a the sides are as 1 / (a (2 - a)) to 2 / a: 2.5 for a = 1.8."""
    for result in findings.of(CASES["step-exact"]):
        assert result.tracking < 1e-9
        assert not result.holds.theorem
        assert result.worst.track == pytest.approx(2.5, rel=0.05)


def test_attackers_in_the_majority_break_the_promise(findings):
    for result in findings.of(CASES["rule"]):
        assert not result.holds.median
        assert not result.holds.explicit
    assert findings.kept  # which speaks of the runs inside only


def test_uploads_err_and_age_no_more_than_the_constants_say(run):
    constants, rounds = constants_of(run), run.rounds
    honest = ~np.isnan(rounds.noise)
    assert 0 < honest.sum() < len(honest)
    np.testing.assert_allclose(np.sqrt(rounds.noise[honest]), constants.noise, rtol=1e-4)
    reach = constants.smoothness * constants.learning_rate * constants.max_staleness
    assert rounds.drift[honest].max() <= 2 * (reach * constants.largest) ** 2
    assert set(rounds.voices) == {6, 7}
    assert rounds.byzantine.max() == 1


@pytest.mark.parametrize(
    ("wrong", "link"),
    [
        ({"gap": -1.0}, "theorem"),
        ({"gap": -1.0}, "descent"),
        ({"heterogeneity": 0, "estimation": 0, "noise": 0, "largest": 0}, "explicit"),
        ({"heterogeneity": 0, "estimation": 0, "noise": 0, "largest": 0}, "tracking"),
    ],
)
def test_check_notices_a_wrong_constant(run, wrong, link):
    constants = constants_of(run)
    assert all(check(run, constants))
    assert not getattr(check(run, constants._replace(**wrong)), link)


@pytest.mark.parametrize(
    ("column", "factor", "link"),
    [
        ("gradient", 10, "descent"),
        ("gradient", 1e8, "explicit"),
        ("scatter", 1e-3, "median"),
        ("tracking", 1e-6, "descent"),
        ("byzantine", 4, "median"),
    ],
)
def test_check_notices_a_wrong_measurement(run, column, factor, link):
    columns = run.rounds._replace(**{column: getattr(run.rounds, column) * factor})
    assert not getattr(check(run._replace(rounds=columns), constants_of(run)), link)


def test_promise_keeps_what_the_theorem_takes_for_given(run):
    inside = constants_of(run)
    worse = inside._replace(byzantine=5, estimation=1e6, largest=1e6, gap=9.0)
    assert worse.median_constant == np.inf
    assert promised(worse, inside) == inside._replace(gap=9.0)


def test_left_side_is_the_mean_so_far(run):
    sides = sides_of(run, constants_of(run))
    assert sides.left[0] == run.rounds.gradient[0]
    assert sides.left[-1] == pytest.approx(run.rounds.gradient.mean())
    assert (np.diff(sides.explicit) <= 0).all()


def test_step_of_the_corollary_is_the_root_of_the_rounds_and_its_bound_holds():
    cases = [CASES["horizon"], CASES["horizon-4x"]]
    found = Findings(SMALL, range(2))
    for _ in found.gather(cases):
        pass
    short, long = (found.of(case) for case in cases)
    for one, more in zip(short, long, strict=True):
        assert all(one.holds)
        assert all(more.holds)
        assert one.constants.step == pytest.approx(120**-0.5)
        assert more.constants.step == pytest.approx(480**-0.5)
        assert more.length == one.length + 360 + one.skipped - more.skipped


def test_step_of_the_corollary_is_never_beyond_the_theorems():
    scope = Scope(clients=7, rounds=12)
    made = scope.experiment(CASES["horizon"], seed=0)
    smoothness = Objective.of_all(made.task.measurements()).smoothness
    assert made.scheduled_training.learning_rate * smoothness == pytest.approx(0.25)


def test_too_few_rounds_to_hear_everybody_are_refused():
    with pytest.raises(ConfigError, match="rounds = 5"):
        measure(Scope(clients=7, rounds=5).experiment(CASES["largest-step"], seed=0))
