import math
import re
from html.parser import HTMLParser

import pytest
from report.run_folders import default_result

from secureafl.core.errors import RunError
from secureafl.report.artefact import Brief, write_artefact
from secureafl.report.cells import Cell, Sheet, Spread, cell_of, compare_with_paper
from secureafl.runs.origin import origin_of

ATTACKS = ["none", "scaling", "gaussian", "sign_flip"]


class Cells(HTMLParser):
    """The cells of a page's tables: their classes and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.images, self._inside = 0, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.images += tag == "img"
        if tag == "td":
            self._inside = True
            self.found.append((dict(attrs).get("class") or "", ""))

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "td"

    def handle_data(self, data):
        if self._inside and data.strip():
            kind, text = self.found[-1]
            self.found[-1] = (kind, f"{text} {data.strip()}".strip())


def cell(ter: float, paper: float | None, asr: float | None = None, **more) -> Cell:
    figures = {"ter": Spread(ter, 0.01)} | ({} if asr is None else {"asr": Spread(asr, 0.02)})
    beside = {} if paper is None else {"ter": paper}
    return Cell(figures, beside | more.pop("also", {}), 3, 3, 0.9, 0.25)


@pytest.fixture
def brief():
    cells = {
        ("async_sgd", "none"): cell(0.12, 0.12),
        ("async_sgd", "scaling"): cell(0.2, 0.41, 0.9, also={"asr": 0.69}),  # ASR decides
        ("async_sgd", "gaussian"): cell(0.3, 0.52),
        ("async_sgd", "sign_flip"): cell(math.nan, 0.41),
        ("secure_afl", "none"): cell(0.124, 0.12),
        ("secure_afl", "scaling"): cell(0.151, 0.18, 0.069, also={"asr": 0.07}),
        ("secure_afl", "gaussian"): Cell({}, {"ter": 0.14}, 0, 3),
        ("secure_afl", "sign_flip"): cell(0.2, 0.13),
    }
    sheet = Sheet("fashion_mnist", ["async_sgd", "secure_afl"], ATTACKS, cells)
    fixed = ("Made up", "secureafl reproduce main", ["Scaled down."], ["A note."], [0, 1, 2])
    return Brief(*fixed, "Defence", "Attack", [sheet], ["secure_afl"], False, [])


def test_page_shows_every_cell_in_its_colour(brief, tmp_path):
    page = write_artefact(brief, tmp_path).read_text()
    found = [c for c in Cells(page).found if c[0].startswith("cell")]
    assert found == [
        ("cell within", "0.120 ± 0.010 0.12"),
        ("cell worse", "0.200 ± 0.010 / 0.900 ± 0.020 0.41 / 0.69"),
        ("cell better", "0.300 ± 0.010 0.52"),
        ("cell worse", "diverged 0.41"),
        ("cell within", "0.124 ± 0.010 0.12"),
        ("cell within", "0.151 ± 0.010 / 0.069 ± 0.020 0.18 / 0.07"),
        ("cell missing", "missing 0.14"),
        ("cell worse", "0.200 ± 0.010 0.13"),
    ]
    for told in ("Scaled down.", "A note.", "secureafl reproduce main", "0, 1, 2", "90.0 %"):
        assert told in page
    assert "<script" not in page
    assert "http" not in page


def test_markdown_has_the_same_numbers(brief, tmp_path):
    page = Cells(write_artefact(brief, tmp_path).read_text())
    markdown = (tmp_path / "index.md").read_text()
    rows = re.findall(r"^\| (?:AsyncSGD|SecureAFL) \|(.*)\|$", markdown, re.MULTILINE)[:2]
    marks = {"cell better": " ▲", "cell within": " ●", "cell worse": " ▼", "cell missing": ""}
    shown = [text.strip() for row in rows for text in row.split("|")]
    told = [c for c in page.found if c[0].startswith("cell")]
    assert len(shown) == len(told) == 8
    for text, (kind, html) in zip(shown, told, strict=True):
        assert text.replace("(", "").replace(")", "") == html + marks[kind]
    assert "**Scaled down.**" in markdown
    assert "90.0 %, 25.0 %" in markdown


def test_summary_counts_what_is_at_or_below_the_paper(brief, tmp_path):
    write_artefact(brief, tmp_path)
    for file in ("index.html", "index.md"):
        text = (tmp_path / file).read_text()
        # 0.124 is the paper's 0.12 to two decimals; sign_flip is worse, gaussian not there.
        assert "SecureAFL at or below the paper in 2 of 4 cells, within 0.03" in text
        assert "or better in 2. 1 of 4 cells of SecureAFL are missing." in text
        # None: 0.120 is lower. Gaussian is not complete. A diverged run is no winner.
        assert "Of the 2 compared, SecureAFL has the lowest TER in 2 of 3 complete columns" in text


def test_curves_are_drawn_once_per_metric_with_missing_points_left_out(brief, tmp_path):
    curves = brief._replace(curves=True, column_name="attack")
    page = write_artefact(curves, tmp_path).read_text()
    assert Cells(page).images == 2
    assert (tmp_path / "ter-over-attack.svg").read_bytes().startswith(b"<?xml")
    assert "(asr-over-attack.svg)" in (tmp_path / "index.md").read_text()


@pytest.mark.parametrize(
    ("ours", "comparison"),
    [(0.169, "better"), (0.17, "within"), (0.23, "within"), (0.231, "worse"), (math.nan, "worse")],
)
def test_comparison_leaves_the_papers_own_spread(ours, comparison):
    assert compare_with_paper(ours, 0.2) == comparison


def test_cell_is_the_mean_and_spread_over_the_finished_seeds(make_run):
    runs = [
        make_run("a", result=default_result(ter=0.2, asr=0.5)),
        make_run("b", result=default_result(ter=0.4, asr=0.7)),
        make_run("c", finished=False),
    ]
    found = cell_of(runs, {"ter": 0.3})
    assert found.figures["ter"] == pytest.approx((0.3, 0.1 * 2**0.5))
    assert list(found.figures) == ["ter", "asr"]
    assert (found.finished, found.planned) == (2, 3)
    assert (found.honest, found.malicious, found.comparison) == (1.0, 0.0, "within")


def test_diverged_run_makes_the_cell_diverge(make_run):
    lost = default_result(ter=0.2)
    lost["metrics"]["ter"]["late_mean"] = None
    found = cell_of([make_run("a", result=lost), make_run("b")], {"ter": 0.3})
    assert math.isnan(found.figures["ter"].mean)
    assert found.comparison == "worse"
    assert not found.at_or_below_paper


@pytest.mark.parametrize(
    "result",
    [
        '{"metrics": {"ter": 3}}',
        '{"metrics": [1]}',
        '{"metrics": {"ter": {"late_mean": Infinity}}, "uploads": {}}',
        '{"metrics": {"ter": {"late_mean": 1%s}}}' % ("0" * 400),
        '{"metrics": {}, "uploads": {"honest": {"share": 1%s}}}' % ("0" * 400),
    ],
)
def test_damaged_result_is_named(make_run, result):
    path = make_run("a")
    (path / "result.json").write_text(result)
    with pytest.raises(RunError, match=r"a: damaged result.*delete the folder"):
        cell_of([make_run("b"), path], {})


def test_results_of_other_figures_are_not_averaged(make_run):
    one, other = make_run("a"), make_run("b", result=default_result(ter=0.1, asr=0.2))
    with pytest.raises(
        RunError, match=r"b: damaged result.json \(has ter, asr, another seed ter\)"
    ):
        cell_of([one, other], {})


@pytest.mark.parametrize("content", ["[" * 100_000, r'{"task": "\udcff"}'])
def test_result_that_nobody_can_read_or_write_is_named(make_run, content):
    path = make_run("a")
    (path / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result\.json: cannot be read.*delete the folder"):
        cell_of([path], {})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("provenance.json", '{"sessions": null}'),
        ("provenance.json", '{"sessions": ["x"]}'),
        ("result.json", '{"seconds": null}'),
        ("result.json", '{"seconds": 1%s}' % ("0" * 400)),
    ],
)
def test_damaged_origin_is_named(make_run, name, content):
    path = make_run("a")
    (path / name).write_text(content)
    with pytest.raises(RunError, match=f"{name}: damaged"):
        origin_of([make_run("b"), path])


def test_every_table_comes_as_csv_and_latex(brief, tmp_path):
    page = write_artefact(brief, tmp_path).read_text()
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        f"{name}.{ending}"
        for name in ("fashion_mnist", "accepted-fashion_mnist")
        for ending in ("csv", "tex")
    }
    assert page.count('download="fashion_mnist.csv"') == 1
    head, first, _ = (tmp_path / "tables" / "fashion_mnist.csv").read_text().splitlines()
    assert head.startswith("Defence,none ter mean,none ter std,none ter paper,scaling ter mean")
    assert first.startswith("AsyncSGD,0.12,0.01,0.12,0.2,0.01")
    latex = (tmp_path / "tables" / "accepted-fashion_mnist.tex").read_text()
    assert r"AsyncSGD & 90.0 \%, 25.0 \%" in latex
