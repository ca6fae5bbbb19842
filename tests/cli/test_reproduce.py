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


def test_page_of_one_run_shows_what_is_missing(cli, make_run):
    make_run("kardam-none-seed0")
    done = cli("reproduce", "main", "--page-only", "--out", "runs")
    assert done.returncode == 0, done.stderr
    assert "11 of 11 cells of SecureAFL are missing." in done.stdout
    assert "11 of 11 cells of Trust clipping are missing." in done.stdout
    page = (cli.folder / "runs" / "report" / "index.html").read_text()
    assert page.count('class="cell missing"') == 98


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["main"], "out: holds none of the runs asked for; without --page-only the command"),
        (["main", "--out", "tpyo"], "tpyo: no such folder; without --page-only the command"),
        (["main,stated"], "out/reproduce-main-fashion_mnist: no such folder"),
        (["main", "--methods", "foo"], "unknown defense 'foo'"),
        (["main", "--methods", "I"], "unknown defense 'I'"),
        (["main", "--attacks", "foo"], "unknown attack 'foo'"),
        (["estimation-error"], "out: holds none of the runs asked for"),
    ],
)
def test_page_of_nothing_is_refused_and_nothing_is_written(cli, words, said):
    (cli.folder / "out" / "mine").mkdir(parents=True)
    before = {*cli.folder.rglob("*")}
    assert said in cli.refused("reproduce", "--page-only", "--out", "out", *words)
    assert {*cli.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("main --data-dir nowhere", "data_dir = 'nowhere': no such folder"),
        ("main --data-dir other", "other: no file train-images-idx3-ubyte"),
        ("main --task cifar10 --data-dir other", "there is no cifar-10-batches-bin/"),
        ("estimation-error --data-dir nowhere", "data_dir = 'nowhere': no such folder"),
        ("main --fast --out tiny.toml", "cannot be written (Not a directory); choose another"),
        ("main --fast --out /proc/x", "cannot be written ("),
        ("main --fast --device cuda:98", "device = 'cuda:98': "),
        ("estimation-error --fast --device cuda:98", "device = 'cuda:98': "),
    ],
)
def test_what_no_cell_could_run_with_is_said_once_and_nothing_is_written(cli, words, said):
    (cli.folder / "other").mkdir()
    before = {*cli.folder.rglob("*")}
    assert said in cli.refused("reproduce", *words.split())
    assert {*cli.folder.rglob("*")} == before


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


def test_pages_of_several_tables_and_tasks(cli, make_run):
    for name in ("main", "stated"):
        for task in ("fashion_mnist", "cifar10"):
            make_run(f"reproduce-{name}-{task}/async_sgd-none-seed0")
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
        (["reproduce", ","], "NAME ',': a name is empty; give names with commas between"),
        (["reproduce", "main,,alpha"], "NAME 'main,,alpha': a name is empty"),
        (["reproduce", "main,main"], "NAME 'main,main': give each name once"),
        (["reproduce", "main", "--task", "cifar10,,udacity"], "--task 'cifar10,,udacity': a name"),
        (["reproduce", "main", "--attacks", ","], "--attacks ',': a name is empty"),
        (["reproduce", "main", "--methods", ""], "--methods '': a name is empty"),
        (["reproduce", "runtime", "--seeds", "0-3"], "runtime has no --seeds: leave it out"),
        (["reproduce", "runtime", "--page-only"], "runtime keeps no runs: leave out --page-only"),
        (["reproduce", "runtime", "--workers", "2"], "leave out --engine and --workers"),
        (["reproduce", "estimation-error", "--methods", "kardam"], "estimation-error has no --me"),
        (["reproduce", "estimation-error", "--attacks", "none"], "estimation-error has no --att"),
        (["compare", "--defenses", ""], "--defenses '': a name is empty"),
        (["table", "out", "--rows", "defense="], "defense=: a value is empty; give values after ="),
        (["reproduce", "maine"], "cannot reproduce 'maine'; did you mean 'main'?"),
        (["results", "--runs", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(cli, words, said):
    assert said in cli.refused(*words)
