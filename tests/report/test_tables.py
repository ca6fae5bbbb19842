import math
import re
from pathlib import Path

import pytest
from report.run_folders import arrival, default_events, default_result, evaluation

from secureafl.core.errors import RunError
from secureafl.report.figures import clients
from secureafl.report.formatting import late_figures, mean_and_deviation
from secureafl.report.headline import headlines
from secureafl.report.tables import Late, compare, read_run, read_runs


def test_finished_run_reports_the_figures_of_its_result(make_run):
    (row,) = compare(read_runs([make_run()]))
    assert (row.defense, row.attack, row.seed, row.rounds) == ("secure_afl", "gaussian", "1", 8)
    assert (row.metric, row.late, row.asr) == ("ter", (0.25, 0.25, 0.01), None)
    assert (row.honest, row.malicious, row.rounds_per_second) == (1.0, 0.0, 12.5)
    assert row.finished


def test_unfinished_run_reports_its_latest_evaluations(make_run):
    (row,) = compare(read_runs([make_run(finished=False, rounds=20)]))
    assert not row.finished
    assert (row.rounds, row.planned) == (8, 20)
    assert row.late is not None
    assert row.late.last == 0.2
    assert row.late.mean == pytest.approx(0.25)  # of 0.3 and 0.2, since late = 2
    assert (row.honest, row.malicious, row.rounds_per_second) == (1.0, 0.0, None)


def test_run_without_any_event_is_reported_without_figures(make_run):
    (row,) = compare(read_runs([make_run(events=[], finished=False)]))
    assert (row.rounds, row.metric, row.late, row.honest, row.malicious) == (0, *[None] * 4)


def test_uploads_before_the_first_evaluation_are_counted(make_run):
    (row,) = compare(read_runs([make_run(events=[arrival(0), arrival(1, 3)], finished=False)]))
    assert (row.rounds, row.metric, row.honest, row.malicious) == (2, None, 1.0, 0.0)


def test_line_cut_short_by_a_kill_is_passed_over(make_run):
    path = make_run(finished=False)
    with (path / "events.jsonl").open("a") as file:
        file.write('{"event": "arr')
    assert read_run(path).rounds == 8


def test_undefined_scores_and_metrics_become_nan(make_run):
    events = [
        evaluation(0, ter=None),
        arrival(0, scores={"lipschitz": None, "threshold": None}),
        arrival(1, scores={}),
        arrival(2, scores={"lipschitz": 3, "threshold": 4.5}),
    ]
    run = read_run(make_run(events=events, finished=False))
    assert math.isnan(run.summary.metrics["ter"].mean)
    assert [math.isnan(x) for x in run.arrivals.lipschitz] == [True, True, False]


def test_asr_is_a_column_of_its_own(make_run):
    (row,) = compare(read_runs([make_run(result=default_result(ter=0.2, asr=0.9))]))
    assert row.asr == (0.9, 0.9, 0.01)


def test_same_run_given_twice_is_reported_once(make_run):
    path = make_run()
    assert len(read_runs([path, path.parent / "." / path.name])) == 1


def test_runs_of_one_name_are_called_by_their_paths(make_run):
    paths = [make_run("a/run"), make_run("b/run")]
    assert [run.name for run in read_runs(paths)] == [str(path) for path in paths]


def test_only_settings_that_differ_are_in_the_labels(make_run):
    paths = [make_run("a", seed=1), make_run("b", seed=2), make_run("c", defense="async_sgd")]
    assert [run.variant for run in read_runs(paths)] == ["secure_afl", "secure_afl", "async_sgd"]
    paths.append(make_run("d", alpha=0.5))
    variants = [run.variant for run in read_runs(paths)]
    assert variants[0] == "secure_afl (alpha=0.8)"
    assert variants[2:] == ["async_sgd", "secure_afl (alpha=0.5)"]


def test_preset_and_time_of_an_attack_belong_to_the_scene(make_run):
    runs = [make_run("a"), make_run("b", attack="gaussian@stealth")]
    assert [run.scene for run in read_runs(runs)] == ["gaussian", "gaussian@stealth"]
    path = make_run("c")
    text = (path / "experiment.toml").read_text()
    (path / "experiment.toml").write_text("attack_from = 4\n" + text)
    found = read_runs([runs[0], path])
    assert [run.scene for run in found] == ["gaussian", "gaussian (attack_from=4)"]
    assert len({run.variant for run in found}) == 1


def test_labels_too_long_to_print_stay_distinct(make_run):
    paths = [make_run(str(n), defense="d" * 80, alpha=n) for n in range(3)]
    variants = [run.variant for run in read_runs(paths)]
    assert len(set(variants)) == 3
    assert max(map(len, variants)) <= 60


def test_headline_tells_what_came_out_under_each_attack(make_run):
    runs = read_runs(
        [
            make_run("a", result=default_result(ter=0.24)),
            make_run("b", defense="async_sgd", result=default_result(ter=0.71)),
            make_run("c", attack="none", events=[], result=default_result(ter=0.1)),
            make_run("d", attack="scaling", result=default_result(ter=0.5, asr=0.01)),
        ]
    )
    assert headlines(runs) == [
        "Under gaussian, secure_afl ended at TER 0.240 (late mean) "
        "and async_sgd ended at TER 0.710 (late mean).",
        "Without an attack, secure_afl ended at TER 0.100 (late mean).",
        "Under scaling, secure_afl ended at TER 0.500 and ASR 0.010 (late mean).",
    ]


def test_attack_that_clients_brought_is_told(make_run):
    run = read_run(make_run("a", attack="none"))
    assert run.arrivals.malicious.any()
    assert (run.scene, compare([run])[0].attack) == ("attacks by clients", "attacks by clients")
    assert headlines(read_runs([run.path]))[0].startswith("Under attacks by clients, secure_afl")


def test_report_of_a_deployment_does_not_claim_to_know_that_nobody_attacked(make_run):
    quiet = [event for event in default_events() if not event.get("malicious")]
    run = make_run("a", attack="none", events=quiet)
    assert headlines(read_runs([run]))[0].startswith("Without an attack, ")
    assert "All these clients are honest" in clients(read_run(run), 1).caption
    (run / "server").mkdir()
    deployed = read_run(run)
    assert (deployed.scene, compare([deployed])[0].attack) == ("no known attack",) * 2
    assert headlines([deployed])[0].startswith("Without a known attack, ")
    picture = clients(deployed, 1)
    assert "the server does not know" in picture.caption
    assert "honest" not in picture.alt


def test_headline_averages_runs_that_differ_in_the_seed_only(make_run):
    paths = [
        make_run(str(seed), seed=seed, result=default_result(ter=ter))
        for seed, ter in enumerate([0.2, 0.4])
    ]
    expected = "Under gaussian, secure_afl ended at TER 0.300 (late mean, mean of 2 runs)."
    assert headlines(read_runs(paths)) == [expected]


def test_headline_says_when_a_run_is_unfinished(make_run):
    runs = read_runs([make_run(finished=False)])
    assert headlines(runs) == [
        "Under gaussian, secure_afl stood at TER 0.250 after 8 rounds (unfinished)."
    ]


def test_headline_of_many_defences_names_the_extremes(make_run):
    paths = [
        make_run(f"r{n}", defense=f"d{n}", result=default_result(ter=n / 10)) for n in range(1, 8)
    ]
    assert headlines(read_runs(paths)) == [
        "Under gaussian, of 7 defences, d1 ended lowest at TER 0.100 (late mean) "
        "and d7 ended highest at TER 0.700 (late mean)."
    ]


def test_no_runs_are_refused():
    with pytest.raises(RunError, match="secureafl run"):
        read_runs([])


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match=re.escape(f"{tmp_path / 'x'}: no such folder")):
        read_run(tmp_path / "x")


def test_folder_of_runs_is_told_from_a_run(make_run, tmp_path):
    make_run()
    with pytest.raises(RunError, match=r"not a run folder \(no experiment.toml\)"):
        read_run(tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("events.jsonl", "{}\n"),
        ("events.jsonl", '{"event": "evaluation", "round": "x", "metrics": {}}\n'),
        ("events.jsonl", '{"event": "evaluation", "round": 0, "metrics": {"ter": "x"}}\n'),
        ("events.jsonl", '{"event": "evaluation", "round": 0, "metrics": null}\n'),
        ("result.json", "{"),
        ("result.json", "{}"),
        ("result.json", '{"metrics": {"ter": 1}}'),
        ("provenance.json", "[]"),
        ("experiment.toml", "seed ="),
    ],
)
def test_damaged_file_is_named_with_a_remedy_on_one_line(make_run, name, content):
    path = make_run()
    (path / name).write_text(content)
    with pytest.raises(RunError, match="leave this run out") as caught:
        read_run(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"client": -1}, {"client": 2**70}, {"client": "x"}, {"accepted": 2}, {"scores": None}],
)
def test_damaged_arrival_is_named_by_its_line(make_run, change):
    path = make_run(events=[arrival(0), arrival(1) | change])
    with pytest.raises(RunError, match=r"events\.jsonl, line 2: damaged"):
        read_run(path)


def test_missing_provenance_is_named(make_run):
    path: Path = make_run()
    (path / "provenance.json").unlink()
    with pytest.raises(RunError, match=r"provenance\.json: no such file; restore"):
        read_run(path)


def test_deviation_of_one_evaluation_is_not_told():
    assert late_figures(Late(0.15, 0.15, 0.0)) == "0.150"
    assert late_figures(Late(0.15, 0.15, 0.02)) == "0.150 ± 0.020"
    assert late_figures(Late(math.nan, math.nan, math.nan)) == late_figures(None)


@pytest.mark.parametrize(
    ("mean", "std", "told"),
    [
        (0.15, 2.8e-5, "0.150 ± 0.000"),
        (0.15, 0.02, "0.150 ± 0.020"),
        (0.0, 0.0, "0.000 ± 0.000"),
        (2e-4, 1e-4, "0.0002 ± 0.0001"),
    ],
)
def test_deviation_has_no_more_decimals_than_the_mean(mean, std, told):
    assert mean_and_deviation(mean, std) == told
