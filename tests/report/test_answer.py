"""The tables that a report begins with: defences by attacks, over seeds."""

import math

import pytest
from report.run_folders import arrival, default_result, evaluation

from secureafl.report.answer import answer, expense, silencing, verdict
from secureafl.report.figures import _band
from secureafl.report.grid import arrange
from secureafl.report.tables import read_runs

# By defence and attack: the figures of its seeds.
FIGURES = {
    ("a", "none"): (0.1, 0.2),
    ("a", "gaussian"): (0.8, 0.9),
    ("b", "none"): (0.2, 0.3),
    ("b", "gaussian"): (0.3, 0.4),
    ("c", "none"): (math.nan, 0.3),
}


def uploads(refused=()):
    """Twelve uploads of four clients, of whom the last is malicious."""
    return [arrival(t, t % 4, accepted=t % 4 not in refused) for t in range(12)]


def honest(events):
    return [{**event, "malicious": False} for event in events]


@pytest.fixture
def sweep(make_run):
    """Two seeds of three defences; under gaussian, b silences client 0 and catches client 3."""

    def made(figures=FIGURES, **more):
        runs = []
        for (defense, attack), scores in figures.items():
            for seed, score in enumerate(scores):
                events = uploads((0, 3) if (defense, attack) == ("b", "gaussian") else ())
                name = f"{defense}-{attack}-{seed}"
                kinds = {"defense": defense, "attack": attack, "seed": seed}
                result = default_result(ter=None if math.isnan(score) else score)
                events = honest(events) if attack == "none" else events
                runs.append(make_run(name, events=events, result=result, **kinds, **more))
        return runs

    return made


def cells(coloured):
    return [[value.text for value in row] for row in coloured.table.rows]


def test_answer_has_means_over_seeds_and_the_best_worst_case_first(sweep):
    found = answer(arrange(read_runs(sweep())))
    assert found.table.head == ["Defence", "no attack", "gaussian"]
    assert cells(found) == [
        ["b", "0.250 ± 0.071", "0.350 ± 0.071"],
        ["a", "0.150 ± 0.071", "0.850 ± 0.071"],
        ["c", "diverged", "\N{EN DASH}"],
    ]
    best = [[value.best for value in row[1:]] for row in found.table.rows]
    assert best == [[False, True], [True, False], [False, False]]
    assert found.table.rows[0][1].parts == pytest.approx({"mean": 0.25, "std": 0.0707}, abs=1e-4)


def test_colours_go_from_the_lowest_to_the_highest_and_what_diverged_is_highest(sweep):
    found = answer(arrange(read_runs(sweep())))
    assert found.colours == [
        ["level-0", "level-1"],
        ["level-0", "level-4"],
        ["level-4", "nothing"],
    ]


def test_figures_that_lie_close_together_look_alike(sweep):
    close = {("a", "none"): (0.001,), ("b", "none"): (0.004,), ("c", "none"): (0.2,)}
    found = answer(arrange(read_runs(sweep(close))))
    assert found.colours == [["level-0"], ["level-0"], ["level-4"]]


def test_attack_success_has_a_column_of_its_own(make_run):
    runs = [
        make_run(name, attack="scaling", defense=name, result=default_result(ter=ter, asr=asr))
        for name, ter, asr in (("a", 0.1, 0.9), ("b", 0.2, 0.0))
    ]
    found = answer(arrange(read_runs(runs)))
    assert found.table.head == ["Defence", "scaling, TER", "scaling, ASR"]
    assert cells(found) == [["a", "0.100", "0.900"], ["b", "0.200", "0.000"]]
    assert found.colours == [["level-0", "level-4"], ["level-4", "level-0"]]


def test_unfinished_runs_are_told(make_run):
    runs = [make_run("a", seed=0), make_run("b", seed=1, finished=False)]
    runs += [make_run("c", defense="other", finished=False)]
    found = answer(arrange(read_runs(runs)))
    assert cells(found) == [
        ["secure_afl", "0.250 (1 of 2)"],
        ["other", "0.250 (unfinished)"],
    ]


def test_silenced_clients_are_counted_beside_those_who_are_caught(sweep):
    found = expense(arrange(read_runs(sweep())))
    heads = ["no attack, silenced", "gaussian, caught", "gaussian, silenced"]
    assert found.table.head == ["Defence", *heads]
    assert cells(found) == [
        ["b", "0 of 8", "2 of 2", "2 of 6"],
        ["a", "0 of 8", "0 of 2", "0 of 6"],
        ["c", "0 of 8", "\N{EN DASH}", "\N{EN DASH}"],
    ]
    assert found.colours[0] == ["level-0", "level-0", "level-4"]
    assert found.colours[1] == ["level-0", "level-4", "level-0"]
    assert found.table.rows[0][3].parts == {"clients": 2, "of": 6}


def test_sentences_name_the_best_the_worst_and_who_silences(sweep):
    grid = arrange(read_runs(sweep()))
    assert verdict(grid) == [
        "Of 3 defences b has the best worst case (TER 0.350), a the worst (TER 0.850); "
        "1 diverged or incomplete."
    ]
    assert silencing(grid) == "Honest clients silenced: b 2 of 14; the others none."


def test_of_a_deployment_nobody_says_who_is_honest(make_run):
    runs = [make_run(str(seed), attack="none", seed=seed) for seed in range(2)]
    for run in runs:
        (run / "server").mkdir()
    grid = arrange(read_runs(runs))
    assert silencing(grid) == "Clients silenced: none."
    assert "honest" not in expense(grid).table.title


def test_metrics_that_cannot_be_compared_are_not_ranked(make_run):
    runs = [
        make_run("a", attack="none"),
        make_run("b", events=[evaluation(0, rmse=3.0)], result=default_result(rmse=2.0)),
        make_run("c", defense="other", attack="none"),
    ]
    assert verdict(arrange(read_runs(runs))) == []


class Axis:
    """Notes what is drawn."""

    def __init__(self):
        self.line = self.band = None

    def plot(self, x, y, **_):
        self.line = list(x), y.tolist()
        return [self]

    def fill_between(self, x, low, high, **_):
        self.band = low.tolist(), high.tolist()

    def set(self, **_):
        pass


def test_curve_is_the_mean_over_seeds_with_a_band_inside_the_metrics_range(make_run):
    curves = ((0.0, 0.2), (0.1, 0.4))
    runs = [
        make_run(str(seed), seed=seed, events=[evaluation(i, ter=y) for i, y in enumerate(curve)])
        for seed, curve in enumerate(curves)
    ]
    (group,) = arrange(read_runs(runs)).groups.values()
    style = type("Style", (), {"_asdict": dict, "color": "k"})()
    _band(axis := Axis(), group, "ter", style)
    assert axis.line[0] == [0, 1]
    assert axis.line[1] == pytest.approx([0.05, 0.3])
    low, high = axis.band
    assert low == pytest.approx([0.0, 0.3 - 0.1414], abs=1e-4)  # not below 0
    assert high == pytest.approx([0.05 + 0.0707, 0.3 + 0.1414], abs=1e-4)
