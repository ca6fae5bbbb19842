"""What the paper's text says of its figures, held against curves that are made up."""

import math

import pytest

from secureafl.paper.tables import main_table
from secureafl.report.artefact import write_artefact
from secureafl.report.cells import Cell, Sheet, Spread
from secureafl.reproduce.claims import CLAIMS, judge
from secureafl.reproduce.plan import Request, brief_for, grid_for

BACKDOORS = ("scaling", "dba", "pgd", "neurotoxin", "three_d_fed")
AXES = {
    "malicious-fraction": "malicious",
    "delay": "arrivals.max_staleness",
    "non-iid": "partition.degree",
    "clients": "clients",
}


def as_the_paper_says(name):
    """Errors, or errors and success rates, by method, attack and place on the scale from 0 to 1."""

    def figures(row, attack, place):
        bad = row not in ("secure_afl", "trust_clipping")
        error = 0.3 + 0.6 * place if bad else 0.12 + 0.04 * place
        rate = 0.9 + 0.1 * place if bad else 0.02
        return (error, rate) if attack in BACKDOORS else (error,)

    return curves(name, figures)


def curves(name, figures):
    axes = grid_for(Request(name)).axes
    columns = [str(value) for value in axes[AXES[name]]]
    sheets = []
    for attack in axes["attack"]:
        cells = {}
        for row in axes["defense"]:
            for number, column in enumerate(columns):
                found = figures(row, attack, number / (len(columns) - 1))
                named = zip(("ter", "asr"), found, strict=False)
                spread = {metric: Spread(value, 0.0) for metric, value in named}
                cells[row, column] = Cell(spread, {}, 3, 3)
        sheets.append(Sheet(attack, axes["defense"], columns, cells))
    return sheets


def changed(sheets, attack, row, column, **figures):
    """The same with other figures in one cell; `figures` of None: without a run."""
    for sheet in sheets:
        if sheet.title == attack:
            old = sheet.cells[row, column]
            new = {metric: Spread(value, 0.0) for metric, value in figures.items()}
            sheet.cells[row, column] = old._replace(figures={**old.figures, **new} if new else {})
    return sheets


def verdicts(name, sheets):
    return [judged.verdict for judged in judge(CLAIMS[name], sheets)]


def test_there_are_claims_of_each_figure():
    assert CLAIMS.keys() == AXES.keys()


@pytest.mark.parametrize("name", AXES)
def test_curves_as_the_paper_tells_them_hold(name):
    found = judge(CLAIMS[name], as_the_paper_says(name))
    assert {judged.verdict for judged in found} == {"holds"}, found


@pytest.mark.parametrize("name", AXES)
def test_of_flat_curves_nothing_that_is_said_to_grow_does(name):
    sheets = curves(name, lambda row, attack, place: (0.12, 0.02)[: 1 + (attack in BACKDOORS)])
    growing = {"malicious-fraction": [2, 3], "delay": [0, 1, 2], "non-iid": [0], "clients": [0]}
    found = verdicts(name, sheets)
    assert [n for n, verdict in enumerate(found) if verdict != "holds"] == growing[name]


@pytest.mark.parametrize(
    ("name", "number", "cell", "figures", "told"),
    [
        ("malicious-fraction", 0, ("pgd", "secure_afl", "0.3"), {"ter": 0.181}, "0.181, under pgd"),
        ("malicious-fraction", 1, ("min_max", "kardam", "0.4"), {"ter": 0.11}, "TER under 9 of 10"),
        ("malicious-fraction", 1, ("dba", "basgd", "0.4"), {"asr": 0.01}, "ASR under 4 of 5"),
        ("malicious-fraction", 2, ("dba", "sageflow", "0.4"), {"asr": 0.89}, "0.890, Sageflow"),
        ("delay", 0, ("gaussian", "kardam", "50"), {"ter": 0.79}, "0.540 at 20 and 0.790 at 50"),
        ("delay", 3, ("gaussian", "secure_afl", "20"), {"ter": 0.2}, "gaussian they are 0.080"),
        (
            "delay",
            4,
            ("three_d_fed", "secure_afl", "50"),
            {"asr": 0.11},
            "under three_d_fed",
        ),
        ("non-iid", 2, ("scaling", "zeno_pp", "0.9"), {"ter": 0.1}, "TER under 9 of 10"),
        ("clients", 1, ("label_flip", "secure_afl", "300"), {"ter": math.nan}, "they are 0.880"),
    ],
)
def test_one_figure_can_decide(name, number, cell, figures, told):
    sheets = changed(as_the_paper_says(name), *cell, **figures)
    judged = judge(CLAIMS[name], sheets)[number]
    assert judged.verdict == "does not hold"
    assert told in judged.because
    others = [v for n, v in enumerate(verdicts(name, sheets)) if n != number]
    assert set(others) == {"holds"}


def test_most_baselines_are_more_than_half_of_them():
    def flat(rows):
        paper = as_the_paper_says("malicious-fraction")
        return [
            sheet._replace(
                cells={
                    (row, column): sheet.cells[row, "0.4" if row in rows else column]
                    for row, column in sheet.cells
                }
            )
            for sheet in paper
        ]

    baselines = ["kardam", "basgd", "async_sgd"]
    assert verdicts("malicious-fraction", flat(baselines[:2]))[3] == "holds"
    assert verdicts("malicious-fraction", flat(baselines))[3] == "does not hold"


@pytest.mark.parametrize("name", AXES)
def test_what_has_not_been_run_is_not_decided(name, tmp_path):
    brief = brief_for(Request(name), tmp_path)
    assert {judged.verdict for judged in brief.claims} == {"not decided"}
    assert all("is missing" in judged.because for judged in brief.claims)
    sheets = changed(as_the_paper_says(name), "pgd", "secure_afl", brief.sheets[0].columns[-1])
    found = [j.because for j in judge(CLAIMS[name], sheets) if j.verdict == "not decided"]
    assert found
    assert all(because.startswith("SecureAFL under pgd at") for because in found)


def test_scaled_down_runs_decide_nothing(tmp_path):
    assert brief_for(Request("delay", fast=True), tmp_path).claims == []
    assert brief_for(Request("main"), tmp_path).claims == []


def test_the_number_of_the_main_table_is_its_highest():
    row = main_table("fashion_mnist")["secure_afl"]
    assert max(figures["ter"] for figures in row.values()) == 0.18
    assert "no higher than 0.18," in CLAIMS["malicious-fraction"][0].text


def test_the_page_tells_them(tmp_path):
    claims = judge(CLAIMS["clients"], as_the_paper_says("clients"))
    claims[0] = claims[0]._replace(verdict="does not hold", because="a < b")
    brief = brief_for(Request("clients"), tmp_path)._replace(claims=claims)
    page = write_artefact(brief, tmp_path / "report").read_text()
    assert '<b class="does-not-hold">does not hold</b> Kardam and BASGD' in page
    assert '<b class="holds">holds</b> SecureAFL is stable' in page
    assert "a &lt; b" in page
    text = (tmp_path / "report" / "index.md").read_text()
    assert "\n- **Does not hold:** Kardam and BASGD" in text
    assert "*a < b" in text
