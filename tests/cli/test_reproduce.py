"""`secureafl reproduce` and `secureafl results` as a user starts them."""

import json

import pytest

from secureafl.runs.layout import read_json

CELLS = [f"{d}-{a}-seed0" for d in ("async_sgd", "secure_afl") for a in ("none", "scaling")]
SMALL = ["--fast", "--methods", "async_sgd,secure_afl", "--attacks", "none,scaling"]


@pytest.mark.slow
def test_main_table_in_small_runs_shows_and_can_be_asked(cli):
    pytest.importorskip("duckdb")
    words = ["reproduce", "main", *SMALL, "--rounds", "5", "--out", "out"]
    done = cli(*words)
    assert done.returncode == 0, done.stderr
    assert "Scaled down (--fast): 5 rounds instead of 20,000" in done.stdout
    assert "SecureAFL at or below the paper in 0 of 2 cells" in done.stdout
    out = cli.folder / "out"
    results = {name: read_json(out / name / "result.json") for name in CELLS}
    markdown = (out / "report" / "index.md").read_text()
    for result in results.values():
        assert f"{result['metrics']['ter']['late_mean']:.3f}" in markdown
    assert 'class="cell worse"' in (out / "report" / "index.html").read_text()

    query = "select defense, attack, ter_late_mean from runs"
    asked = cli("results", query, "--runs", "out", "--json")
    assert asked.returncode == 0, asked.stderr
    found = {
        f"{r['defense']}-{r['attack']}-seed0": r["ter_late_mean"] for r in json.loads(asked.stdout)
    }
    assert found == {name: r["metrics"]["ter"]["late_mean"] for name, r in results.items()}

    again = cli(*words, "--page-only", "--quiet")
    assert again.returncode == 0, again.stderr
    assert (out / "report" / "index.md").read_text() == markdown


def test_page_of_nothing_shows_what_is_missing(cli):
    done = cli("reproduce", "main", "--page-only", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "11 of 11 cells of SecureAFL are missing." in done.stdout
    assert "11 of 11 cells of Trust clipping are missing." in done.stdout
    page = (cli.folder / "out" / "report" / "index.html").read_text()
    assert page.count('class="cell missing"') == 99


@pytest.mark.slow
def test_several_tables_share_their_runs_and_each_has_its_page(cli):
    """Of both, AsyncSGD without an attack is the same run, and so is SecureAFL's."""
    words = ["--fast", "--methods", "async_sgd,secure_afl", "--attacks", "none", "--rounds", "5"]
    done = cli("reproduce", "main,stated", *words, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "2/2 cells done, 0 failed"
    pages = [f"out/reproduce-{name}-fashion_mnist-fast" for name in ("main", "stated")]
    for page in pages:
        assert f"page: {page}/report/index.html" in done.stdout
        assert len([*(cli.folder / page).glob("*-none-seed0/result.json")]) == 2


def test_pages_of_several_tables_and_tasks(cli):
    words = ["main,stated", "--task", "fashion_mnist,cifar10", "--page-only", "--quiet"]
    done = cli("reproduce", *words, "--methods", "async_sgd", "--attacks", "none")
    assert done.returncode == 0, done.stderr
    found = {path.parts[-3] for path in (cli.folder / "runs").glob("*/report/index.html")}
    assert found == {
        f"reproduce-{name}-{task}"
        for name in ("main", "stated")
        for task in ("fashion_mnist", "cifar10")
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "main,alpah"], "cannot reproduce 'alpah'; did you mean 'alpha'?"),
        (["reproduce", "main,alpha", "--task", "cifar10"], "'alpha' on fashion_mnist only"),
        (["reproduce", "main,runtime"], "runtime measures: ask for it alone"),
        (["reproduce", ","], "cannot reproduce ','"),
        (["reproduce", "maine"], "cannot reproduce 'maine'; did you mean 'main'?"),
        (["results", "--runs", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(cli, words, said):
    assert said in cli.refused(*words)
