import csv
import io
import math

import pytest
from report.run_folders import default_result
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.report.cells import Spread
from secureafl.report.export import (
    Table,
    as_csv,
    as_latex,
    as_markdown,
    latex_text,
    over_runs,
    plain,
    share,
    texts,
)  # fmt: skip

TABLE = Table(
    "errors",
    "TER, 50 % malicious & more",
    ["Defence", "no attack", "accepted", "seeds"],
    [
        [plain("a_b"), over_runs(Spread(0.15, 0.0707), 2, best=True), share(0.975), plain(2)],
        [plain("c|d"), over_runs(Spread(math.nan, math.nan), 2), share(None), plain(1234)],
        [plain('e "f"'), over_runs(None, 0), share(0.0), plain(None)],
    ],
)


def test_markdown_is_for_readers():
    assert as_markdown(TABLE) == (
        "| Defence | no attack | accepted | seeds |\n|---|---|---|---|\n"
        "| a_b | 0.150 ± 0.071 | 97.5 % | 2 |\n"
        "| c\\|d | diverged | \N{EN DASH} | 1,234 |\n"
        '| e "f" | \N{EN DASH} | 0.0 % | \N{EN DASH} |\n'
    )


def test_csv_has_numbers_in_full_with_a_column_each_for_mean_and_deviation():
    head, first, second, third = csv.reader(io.StringIO(as_csv(TABLE)))
    assert head == ["Defence", "no attack mean", "no attack std", "accepted", "seeds"]
    assert first == ["a_b", "0.15", "0.0707", "0.975", "2"]
    assert second == ["c|d", "nan", "nan", "", "1234"]
    assert third == ['e "f"', "", "", "0.0", ""]


def test_latex_has_the_rules_of_booktabs_and_as_many_cells_in_every_line():
    text = as_latex(TABLE)
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrr}"):
        assert text.count(rule) == 1
    assert r"\caption{TER, 50 \% malicious \& more}" in text
    lines = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert [line.count(" & ") for line in lines] == [3] * 4
    assert r"a\_b & \textbf{\boldmath $0.150 \pm 0.071$} & 97.5 \% & 2 \\" in lines


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("0.15 ± 0.02 / 0.3", r"$0.15 \pm 0.02$ / 0.3"),
        (r"\a{b}~^$#", r"\textbackslash{}a\{b\}\textasciitilde{}\textasciicircum{}\$\#"),
        ("mean ± std", r"mean $\pm$ std"),
    ],
)
def test_text_is_printed_by_latex_as_it_is(text, latex):
    assert latex_text(text) == latex


def test_empty_table_can_be_written():
    table = texts("none", "Nothing", ["a", "b"], [])
    assert as_csv(table) == "a,b\n"
    assert r"\begin{tabular}{ll}" in as_latex(table)


def test_command_prints_every_format(make_run):
    for seed, ter in enumerate((0.1, 0.2)):
        result = default_result(ter=ter, asr=0.5)
        folder = make_run(str(seed), seed=seed, attack="scaling", result=result).parent

    def printed(how, *more):
        return CliRunner().invoke(app, ["table", str(folder), "--format", how, *more]).output

    head, row = csv.reader(io.StringIO(printed("csv")))
    names = [f"secure_afl {metric} {what}" for metric in ("ter", "asr") for what in ("mean", "std")]
    assert head == ["attack", *names]
    assert [float(cell) for cell in row[1:]] == pytest.approx([0.15, 0.0707, 0.5, 0.0], abs=1e-4)
    assert r"scaling & $0.150 \pm 0.071$ / $0.500 \pm 0.000$ \\" in printed("latex")
    assert "| scaling | 0.150 ± 0.071 / 0.500 ± 0.000 |" in printed("markdown")
    shares = csv.reader(io.StringIO(printed("csv", "--show", "accepted")))
    assert list(shares)[1] == ["scaling", "1.0", "0.0"]
