import json
import tarfile

import pytest
from report.run_folders import default_result
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import ConfigError, RunError
from secureafl.report.export import write_table
from secureafl.report.formatting import NOTHING
from secureafl.report.table import make_table, parse_axis, read_sources


def result(ter, **more):
    return {**default_result(ter=ter), "steps": 1500, **more}


@pytest.fixture
def runs(make_run):
    """Two defences under two attacks; one cell has two seeds, one is unfinished, one is missing."""
    make_run("a", defense="async_sgd", attack="none", seed=0, result=result(0.1))
    make_run("b", defense="async_sgd", attack="none", seed=1, result=result(0.2))
    make_run("c", defense="async_sgd", attack="sign_flip", seed=0, result=result(None))
    make_run("d", defense="secure_afl", attack="none", seed=0, finished=False)
    return make_run("e", defense="kardam", attack="none", seed=0, result=result(0.15)).parent


def made(
    folder, rows=("attack",), columns=("defense",), show="figures", paper=False, how="markdown"
):
    found = read_sources([folder], folder / ".place")
    axes = [*map(parse_axis, rows)], [*map(parse_axis, columns)]
    return write_table(make_table(found, *axes, show, paper), "markdown")


def test_cells_are_means_over_seeds_and_say_what_is_not_there(runs):
    assert made(runs) == (
        "| attack | async_sgd | kardam | secure_afl |\n"
        "|---|---|---|---|\n"
        "| none | 0.150 ± 0.071 | 0.150 | missing |\n"
        "| sign_flip | diverged | \N{EN DASH} | \N{EN DASH} |\n"
    )


def test_axes_choose_and_order_values_and_the_paper_stands_in_brackets(runs):
    columns = ("defense=kardam,async_sgd",)
    assert made(runs, ("attack=sign_flip,none",), columns, paper=True).splitlines()[2:] == [
        "| sign_flip | \N{EN DASH} | diverged (0.41) |",
        "| none | 0.150 (0.17) | 0.150 ± 0.071 (0.12) |",
    ]


@pytest.mark.parametrize(
    ("show", "cell"),
    [("accepted", "100.0 %, 0.0 %"), ("malicious", "0.0 %"), ("steps", "1,500")],
)
def test_other_figures_of_a_cell(runs, show, cell):
    assert f"| none | {cell} |" in made(runs, columns=("defense=kardam",), show=show)


def test_distance_from_the_paper_is_over_all_attacks_that_it_has(make_run):
    # The paper's figures: 0.12 for none, 0.41 for sign_flip, 0.41 and 0.69 for scaling.
    make_run("a", defense="async_sgd", attack="none", seed=0, result=result(0.13))
    make_run("b", defense="async_sgd", attack="none", seed=1, result=result(0.15))
    make_run("c", defense="async_sgd", attack="sign_flip", seed=0, result=result(0.61))
    make_run("d", defense="async_sgd", attack="gaussian", seed=0, finished=False)
    folder = make_run("e", defense="async_sgd", attack="alie", seed=0, result=result(0.9)).parent
    rows = made(folder, ("defense",), ("rounds",), show="distance").splitlines()
    assert rows[2].endswith("| 1 of 2, 0.110 |")


def test_a_backdoor_that_differs_is_not_the_papers(make_run):
    # The paper's figures: 0.41 and 0.69 for scaling, 0.53 and 0.60 for dba.
    for name, attack, ter, asr in (("a", "scaling", 0.41, 0.9), ("b", "dba", 0.53, 0.62)):
        both = {**result(ter), "metrics": {"ter": {"late_mean": ter}, "asr": {"late_mean": asr}}}
        folder = make_run(name, defense="async_sgd", attack=attack, result=both).parent
    assert "| 1 of 2, 0.000 |" in made(folder, ("defense",), ("rounds",), show="distance")


def test_distance_is_missing_without_figures_of_the_paper_and_infinite_after_divergence(runs):
    rows = made(runs, ("attack",), show="distance").splitlines()[2:]
    assert rows == [
        "| none | 1 of 1, 0.030 | 1 of 1, 0.020 | \N{EN DASH} |",
        "| sign_flip | 0 of 1, diverged | \N{EN DASH} | \N{EN DASH} |",
    ]


def test_origin_is_told_by_row(runs):
    table = made(runs, ("defense",), show="origin").splitlines()
    assert table[0] == "| defense | seeds | hardware | software | days | data |"
    assert table[2].startswith("| async_sgd | 0, 1 | ")
    assert "embedded slice" in table[2]


def test_several_axes_make_one_key(runs):
    head, _, first, *_ = made(runs, ("defense", "seed"), ("attack",)).splitlines()
    assert head == "| defense | seed | none | sign_flip |"
    assert first == "| async_sgd | 0 | 0.100 | diverged |"


def test_numbers_are_in_their_order(make_run):
    for seed, rounds in enumerate((20, 8, 100)):
        folder = make_run(str(seed), rounds=rounds, result=result(0.1)).parent
    rows = made(folder, ("rounds",)).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 8", "| 20", "| 100"]


def test_settings_that_few_runs_have_tell_variants_apart(make_run):
    folder = make_run("usual0", seed=0, result=result(0.1)).parent
    make_run("usual1", seed=1, result=result(0.1))
    make_run("other", seed=0, alpha=0.4, result=result(0.3))
    rows = made(folder, ("defense",), ("attack",)).splitlines()[2:]
    assert rows == ["| secure_afl | 0.100 ± 0.000 |", "| secure_afl (alpha=0.4) | 0.300 |"]


def test_variants_are_named_as_the_table_shows_them(make_run):
    runs = [make_run(f"usual{seed}", seed=seed, result=result(0.1)) for seed in (0, 1)]
    runs += [make_run("other", alpha=0.4, result=result(0.3))]
    for run in runs:
        file, window = run / "experiment.toml", 9 if run.name == "other" else 0
        file.write_text(file.read_text().replace("alpha =", f"window = {window}\nalpha ="))
    other, usual = "secure_afl (window=9, alpha=0.4)", "secure_afl"
    rows = made(runs[0].parent, (f"defense={other},{usual}",), ("attack",)).splitlines()[2:]
    assert rows == [f"| {other} | 0.300 |", f"| {usual} | 0.100 ± 0.000 |"]


def test_settings_that_came_later_do_not_tell_old_runs_from_new_ones(make_run):
    folder = make_run("old0", seed=0, alpha=0.8, result=result(0.1)).parent
    make_run("old1", seed=1, alpha=0.8, result=result(0.1))
    for old in ("old0", "old1"):
        path = folder / old / "experiment.toml"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if not line.startswith("alpha")))
    make_run("new", seed=2, alpha=0.8, result=result(0.1))
    rows = made(folder, ("defense",), ("attack",)).splitlines()[2:]
    assert rows == ["| secure_afl | 0.100 ± 0.000 |"]


def test_runs_that_differ_in_more_than_their_seed_are_not_averaged(make_run):
    make_run("few", rounds=8, result=result(0.1))
    folder = make_run("many", rounds=9, result=result(0.1)).parent
    with pytest.raises(ConfigError, match="few and many differ in rounds; name what differs"):
        made(folder)


def test_nor_are_runs_of_several_seeds_that_differ_in_more(make_run):
    make_run("few", seed=1, rounds=8, result=result(0.1))
    folder = make_run("many", seed=2, rounds=9, result=result(0.1)).parent
    with pytest.raises(ConfigError, match="few and many differ in rounds; name what differs"):
        made(folder)


def test_where_seeds_were_run_does_not_keep_them_apart(make_run):
    for seed, device in enumerate(("cpu", "cuda")):
        path = make_run(device, seed=seed, result=result(0.1))
        text = (path / "experiment.toml").read_text()
        (path / "experiment.toml").write_text(f'device = "{device}"\n{text}')
    assert "| gaussian | 0.100 ± 0.000 |" in made(path.parent)


def test_run_whose_settings_say_nothing_is_a_row_of_its_own(make_run):
    folder = make_run("a", seed='"x"', result=result(0.1)).parent
    path = make_run("b", result=result(0.2))
    (path / "experiment.toml").write_text("")
    rows = made(folder, ("defense",), show="origin").splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| secure_afl", "x"],
        [f"| {NOTHING}", NOTHING],
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("atack", "no run has a setting 'atack'"),
        ("attack=nune", "no run has attack = nune; did you mean 'none'"),
    ],
)
def test_unknown_settings_and_values_are_refused(runs, rows, said):
    with pytest.raises(ConfigError, match=said):
        made(runs, (rows,))


def test_archive_is_read_like_the_folder_in_it(runs, tmp_path):
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(runs, "all")
    found = read_sources([archive], tmp_path / "place")
    axes = [parse_axis("attack")], [parse_axis("defense")]
    assert write_table(make_table(found, *axes, "figures", False), "markdown") == made(runs)
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(RunError, match="cannot be unpacked"):
        read_sources([archive], tmp_path / "elsewhere")


PAGE = """# Title

Words | and more words.

<!-- secureafl table runs
  --columns defense=async_sgd -->
| old |
<!-- end of table -->

The end.
"""


def test_page_gets_its_tables_and_keeps_its_words(runs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    checked = CliRunner().invoke(app, ["table", str(page), "--check"])
    assert (checked.exit_code, page.read_text()) == (1, PAGE)
    assert "page.md: its tables differ from their runs" in checked.output
    assert CliRunner().invoke(app, ["table", str(page)]).exit_code == 0
    before, _, after = PAGE.partition("| old |\n")
    table = made(runs, columns=("defense=async_sgd",))
    assert page.read_text() == f"{before}\n{table}\n{after}"
    assert CliRunner().invoke(app, ["table", str(page), "--check"]).exit_code == 0


def test_page_whose_command_is_wrong_is_refused(runs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("--columns", "--colums"))
    done = CliRunner().invoke(app, ["table", str(page)])
    assert done.exit_code == 2
    assert "--colums" in done.output
    assert "| old |" in page.read_text()


def test_page_without_a_table_is_passed_over_beside_one_with_some(runs, tmp_path):
    page, words = tmp_path / "page.md", tmp_path / "words.md"
    page.write_text(PAGE)
    words.write_text("words")
    assert CliRunner().invoke(app, ["table", str(words), str(page)]).exit_code == 0
    assert "| old |" not in page.read_text()
    assert words.read_text() == "words"


def test_page_without_a_table_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(json.dumps("words"))
    done = CliRunner().invoke(app, ["table", str(page)])
    assert isinstance(done.exception, ConfigError)
    assert "no table with its command above it" in str(done.exception)
