import json

import pytest
from report.run_folders import default_result

from secureafl import results_table
from secureafl.core.errors import ConfigError, RunError
from secureafl.runs.summary import summarise

duckdb = pytest.importorskip("duckdb")

QUERY = "select defense, attack, seed, ter_late_mean from runs order by run"


def test_rows_are_what_the_run_folders_say(make_run, tmp_path):
    make_run("a", seed=1)
    make_run("b", seed=2, defense="async_sgd", attack="none", result=default_result(ter=0.5))
    found = results_table([tmp_path])
    assert found.query(QUERY).rows == [
        ("secure_afl", "gaussian", 1, 0.25),
        ("async_sgd", "none", 2, 0.5),
    ]
    settings = "select defense_alpha, evaluation_late, clients, honest_accepted, torch from runs"
    assert found.query(settings).rows == [(0.8, 2, 4, 1.0, "2.13.0")] * 2


def test_evaluations_are_those_of_the_events(make_run, tmp_path):
    path = make_run("a")
    query = "select round, metric, value from evaluations order by round"
    assert results_table([tmp_path]).query(query).rows == [
        (0, "ter", 0.9),
        (7, "ter", 0.3),
        (8, "ter", 0.2),
    ]
    (path / "events.jsonl").unlink()
    assert results_table([tmp_path]).query(query).rows == [], "results kept without their events"


def test_unfinished_run_has_no_figures(make_run, tmp_path):
    make_run("a", finished=False)
    make_run("b")
    rows = results_table([tmp_path]).query("select finished, ter_last from runs order by run").rows
    assert rows == [(False, None), (True, 0.25)]


def test_setting_that_is_a_number_here_and_a_text_there_becomes_text(make_run, tmp_path):
    make_run("a", alpha=0.8)
    make_run("b", alpha='"high"')
    assert results_table([tmp_path]).query("select defense_alpha from runs order by run").rows == [
        ("0.8",),
        ("high",),
    ]


def test_plain_setting_wins_over_one_of_a_plug_in_with_the_same_column(make_run, tmp_path):
    path = make_run("a")
    text = (path / "experiment.toml").read_text()
    changed = "attack_from = 4\nsizes = [1, 2]\n" + text + "from = 7\n"
    (path / "experiment.toml").write_text(changed)
    query = "select attack, attack_from, sizes from runs"
    assert results_table([tmp_path]).query(query).rows == [("gaussian", 4, "[1, 2]")]


def test_answer_becomes_a_data_frame_or_a_file(make_run, tmp_path):
    pytest.importorskip("pandas")
    make_run("a")
    found = results_table([tmp_path])
    assert found.to_pandas(QUERY)["ter_late_mean"].tolist() == [0.25]
    for name in ("made/some.parquet", "some.csv"):
        found.write(tmp_path / name, QUERY)
        again = duckdb.sql(f"select * from '{tmp_path / name}'").fetchall()
        assert again == found.query(QUERY).rows
    with pytest.raises(ConfigError, match=r"name it .parquet or .csv"):
        found.write(tmp_path / "some.xls")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select nothing from runs", "the query failed: .*nothing"),
        ("selec 1", "the query failed"),
    ],
)
def test_query_that_cannot_be_answered_is_refused(make_run, tmp_path, sql, said):
    make_run("a")
    with pytest.raises(ConfigError, match=said) as caught:
        results_table([tmp_path]).query(sql)
    assert "\n" not in str(caught.value)


def test_folder_without_runs_and_damaged_run_are_refused(make_run, tmp_path):
    with pytest.raises(RunError, match="no run folder in it"):
        results_table([tmp_path])
    path = make_run("a")
    (path / "result.json").write_text('{"metrics": 3}')
    with pytest.raises(RunError, match="damaged"):
        results_table([tmp_path])


@pytest.mark.parametrize("digits", [20, 60])
def test_number_that_no_table_holds_is_damage(make_run, tmp_path, digits):
    make_run("whole")
    make_run("a", result={**default_result(), "steps": 10**digits})
    with pytest.raises(RunError, match=r"a: damaged \(steps is a number of"):
        results_table([tmp_path])


def test_real_run_gives_the_same_figures_as_its_events(tmp_path):
    from simulation.small import tiny

    from secureafl.runs.events import read_events
    from secureafl.runs.layout import read_json
    from secureafl.simulation.run import start_run

    experiment = tiny(attack="scaling", seed=3)
    for _ in start_run(experiment, tmp_path / "run", 60.0):
        pass
    row = results_table([tmp_path]).query("select ter_late_mean, asr_last, steps, seed from runs")
    late = experiment.evaluation.late_rounds(experiment.rounds)
    expected = summarise(read_events(tmp_path / "run"), late)
    figures = expected["metrics"]
    assert row.rows == [(figures["ter"]["late_mean"], figures["asr"]["last"], expected["steps"], 3)]
    assert json.dumps(read_json(tmp_path / "run" / "result.json")["metrics"]) == json.dumps(figures)
