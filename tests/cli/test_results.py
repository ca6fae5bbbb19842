"""What `secureafl results` prints."""

import json

import pytest

pytest.importorskip("duckdb")


@pytest.fixture
def two_runs(make_run):
    make_run("one", defense="async_sgd")
    make_run("two", defense="trust_clipping")


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("columns", ["80", "200"])
def test_without_a_query_names_and_errors_are_readable(cli, columns):
    cli.environment["COLUMNS"] = columns
    code, out, _ = cli.run_here("results")
    assert code == 0
    words = ("runs/one", "defense", "async_sgd", "trust_clipping", "gaussian", "0.25")
    assert [word for word in words if word not in out] == []


@pytest.mark.usefixtures("two_runs")
def test_more_columns_than_fit_are_printed_a_line_each(cli):
    code, out, _ = cli.run_here("results", "select * from runs order by run")
    assert code == 0
    values = [line.split() for line in out.splitlines() if line]
    assert ["defense", "async_sgd"] in values
    assert ["defense", "trust_clipping"] in values
    assert sum(words[0] == "run" for words in values) == 2


@pytest.mark.usefixtures("two_runs")
def test_without_a_query_json_has_every_column(cli):
    code, out, _ = cli.run_here("results", "--json")
    assert code == 0
    assert {"defense_alpha", "honest_accepted", "ter_last"} <= set(json.loads(out)[0])
