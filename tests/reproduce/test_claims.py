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
        error = 0.25 + 0.65 * place if bad else 0.13 + 0.04 * place
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
    growing = {
        "malicious-fraction": [0, 1, 4, 6],
        "delay": [0, 1, 2, 5, 6],
        "non-iid": [1, 2],
        "clients": [0, 1],
    }
    found = verdicts(name, sheets)
    assert [n for n, verdict in enumerate(found) if verdict != "holds"] == growing[name]


@pytest.mark.parametrize(
    ("name", "number", "cell", "figures", "told"),
    [
        ("malicious-fraction", 2, ("pgd", "kardam", "0.1"), {"ter": 0.11}, "TER in 39 of 40"),
        ("malicious-fraction", 3, ("pgd", "secure_afl", "0.3"), {"ter": 0.181}, "0.181, under pgd"),
        ("malicious-fraction", 5, ("dba", "basgd", "0.4"), {"asr": 0.01}, "ASR in 4 of 5"),
        (
            "malicious-fraction",
            6,
            ("dba", "sageflow", "0.4"),
            {"ter": 0.79, "asr": 0.89},
            "5 of 6 are; not Sageflow under dba with an error of 0.790 and a success rate of 0.890",
        ),
        ("malicious-fraction", 7, ("dba", "secure_afl", "0.4"), {"asr": 0.11}, "0.110, under dba"),
        ("delay", 2, ("gaussian", "kardam", "50"), {"ter": 0.79}, "0.510 at 20 and 0.790 at 50"),
        ("delay", 3, ("gaussian", "secure_afl", "20"), {"ter": 0.2}, "gaussian they are 0.070"),
        ("delay", 4, ("min_max", "secure_afl", "50"), {"ter": 0.181}, "0.181, under min_max"),
        (
            "delay",
            4,
            ("three_d_fed", "secure_afl", "50"),
            {"asr": 0.11},
            "0.110, under three_d_fed",
        ),
        ("non-iid", 4, ("scaling", "zeno_pp", "0.3"), {"ter": 0.1}, "TER in 49 of 50"),
        ("clients", 2, ("label_flip", "secure_afl", "300"), {"ter": math.nan}, "they are 0.870"),
    ],
)
def test_one_figure_can_decide(name, number, cell, figures, told):
    sheets = changed(as_the_paper_says(name), *cell, **figures)
    judged = judge(CLAIMS[name], sheets)[number]
    assert judged.verdict == "does not hold"
    assert told in judged.because
    others = [v for n, v in enumerate(verdicts(name, sheets)) if n != number]
    assert set(others) == {"holds"}


def with_rows(sheets, rows, *figures, first=None):
    """The same, but for these rows, whose figures are these everywhere, or else at the start."""
    for sheet in sheets:
        for row in rows:
            for column in sheet.columns:
                now = first if first and column == sheet.columns[0] else figures
                now = dict(zip(("ter", "asr")[: 1 + (sheet.title in BACKDOORS)], now, strict=False))
                changed([sheet], sheet.title, row, column, **now)
    return sheets


@pytest.mark.parametrize(
    ("figures", "first", "holds"),
    [
        ((0.3, 0.5), None, False),
        ((0.9, 0.0), None, True),  # ruined from the start on, under all attacks
        ((0.3, 0.95), (0.3, 0.02), False),  # taken over, but under five attacks of ten
        ((0.5, 0.5), (0.3, 0.5), True),
        ((0.41, 0.5), (0.31, 0.5), False),  # no more than a tenth
    ],
)
def test_baselines_become_worse_in_error_or_are_lost(figures, first, holds):
    rows = ["kardam", "basgd", "async_sgd"]
    sheets = with_rows(as_the_paper_says("malicious-fraction"), rows, *figures, first=first)
    found = verdicts("malicious-fraction", sheets)[0]
    assert found == ("holds" if holds else "does not hold")


def test_most_baselines_are_more_than_half_of_them():
    sheets = with_rows(as_the_paper_says("malicious-fraction"), ["kardam", "basgd"], 0.3, 0.5)
    assert verdicts("malicious-fraction", sheets)[0] == "holds"


def test_a_backdoor_that_comes_to_succeed_makes_a_baseline_worse():
    rows = ["kardam", "basgd", "async_sgd"]
    sheets = with_rows(as_the_paper_says("malicious-fraction"), rows, 0.2, 0.95, first=(0.2, 0.02))
    for row in rows:
        changed(sheets, "min_max", row, "0.4", ter=0.5)
    assert verdicts("malicious-fraction", sheets)[0] == "holds"


def test_a_ruined_model_is_lost_though_no_backdoor_is_in_it():
    sheets = as_the_paper_says("malicious-fraction")
    changed(sheets, "pgd", "sageflow", "0.4", ter=0.9, asr=0.0)
    assert verdicts("malicious-fraction", sheets)[6] == "holds"


def test_half_as_much_worse_is_markedly_slower():
    paper = as_the_paper_says("malicious-fraction")
    found = judge(CLAIMS["malicious-fraction"], paper)[1]
    assert found.because == "in the mean its error rises by 0.040, theirs by 0.650"
    ruined = with_rows(paper, ["kardam"], 0.9, 0.0)  # which says nothing of its pace
    assert judge(CLAIMS["malicious-fraction"], ruined)[1] == found
    lost = with_rows(paper, ["secure_afl"], 0.9, 0.0)
    found = judge(CLAIMS["malicious-fraction"], lost)[1]
    assert found.verdict == "not decided"
    assert found.because == "of SecureAFL everything is ruined at 0.1 already"
    slow = with_rows(paper, ["secure_afl"], 0.45, 0.0, first=(0.1, 0.0))
    assert verdicts("malicious-fraction", slow)[1] == "does not hold"


def test_a_method_that_is_lost_is_not_stable():
    sheets = with_rows(as_the_paper_says("delay"), ["zeno_pp"], 0.9, 0.0)
    assert verdicts("delay", sheets)[6] == "holds"
    sheets = with_rows(sheets, ["zeno_pp"], 0.3, 0.0)
    assert verdicts("delay", sheets)[6] == "does not hold"


def test_sentences_on_several_degrees_are_judged_at_all_of_them():
    sheets = as_the_paper_says("non-iid")
    for sheet in sheets:
        changed(sheets, sheet.title, "zeno_pp", "0.7", ter=0.35)  # 0.25 at the start
    assert verdicts("non-iid", sheets)[1:3] == ["holds", "does not hold"]


@pytest.mark.parametrize("name", AXES)
def test_nothing_is_decided_by_some_of_the_attacks_or_methods(name):
    sheets = as_the_paper_says(name)
    found = judge(CLAIMS[name], [sheet for sheet in sheets if sheet.title == "gaussian"])
    decided = [judged.text for judged in found if judged.verdict != "not decided"]
    assert len(decided) == (name == "delay")  # a sentence on gaussian alone
    for sheet in sheets:
        for row in ("kardam", "aflguard"):
            for column in sheet.columns:
                changed(sheets, sheet.title, row, column)
    named = [c.verdict for c in judge(CLAIMS[name], sheets) if "Kardam" in c.text + c.because]
    assert named
    assert set(named) == {"not decided"}


def test_runs_of_another_size_decide_nothing(tmp_path):
    brief = brief_for(Request("delay", rounds=20), tmp_path)
    assert {judged.because for judged in brief.claims} == {
        "20 rounds instead of the paper's 20,000."
    }
    found = judge(CLAIMS["delay"], as_the_paper_says("delay"), brief.warnings)
    assert {judged.verdict for judged in found} == {"not decided"}


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
    assert "no higher than 0.18," in CLAIMS["malicious-fraction"][3].text


def test_the_page_tells_them(tmp_path):
    claims = judge(CLAIMS["clients"], as_the_paper_says("clients"))
    claims[1] = claims[1]._replace(verdict="does not hold", because="a < b")
    brief = brief_for(Request("clients"), tmp_path)._replace(claims=claims)
    page = write_artefact(brief, tmp_path / "report").read_text()
    assert '<b class="does-not-hold">does not hold</b> Kardam and BASGD' in page
    assert '<b class="holds">holds</b> SecureAFL is stable' in page
    assert "a &lt; b" in page
    text = (tmp_path / "report" / "index.md").read_text()
    assert "\n- **Does not hold:** Kardam and BASGD" in text
    assert "*a < b" in text
