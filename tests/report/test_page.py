import html.parser
import subprocess
import sys
from pathlib import Path

import pytest
from report.run_folders import arrival, default_events, default_result, evaluation

from secureafl.core.errors import RunError
from secureafl.report import drawing
from secureafl.report.page import write_report


class Page(html.parser.HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags[-1:] != [("style", {})]:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


INSIDE = ("image/svg+xml", "text/csv", "application/x-tex")


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def _wide_only(monkeypatch):
    """Leaves out the figures for small screens, which cost as much as the others."""
    real = drawing._render
    monkeypatch.setattr(
        drawing, "_render", lambda size, draw: real(size, draw) if size[0] == drawing.WIDE else b""
    )


@pytest.fixture
def report(tmp_path, _wide_only):
    return lambda *runs: Page(write_report(list(runs), tmp_path / "report"))


def test_page_of_several_runs_is_complete_in_itself(make_run, report):
    page = report(make_run("a"), make_run("b", defense="async_sgd"))
    names = ("src", "srcset", "href")
    links = [value for _, a in page.tags for key, value in a.items() if key in names]
    inside = ("#", *(f"data:{kind};base64," for kind in INSIDE))
    assert {start for start in inside for link in links if link.startswith(start)} == set(inside)
    assert all(link.startswith(inside) for link in links)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed"}
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert len(ids) == len(set(ids))


def test_page_of_one_run_serves_readers_who_cannot_see(make_run, report):
    page = report(make_run())
    assert len(page.all("img")) == 5
    assert all(image["alt"] for image in page.all("img"))
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))
    for told in ("defense.alpha", "0.8", "embedded slice", "2.13.0", "aarch64"):
        assert told in page.text


def test_clients_are_listed_by_suspicion_in_the_words_of_the_dashboard(make_run, report):
    events = [arrival(t, t % 4) for t in range(200)]  # client 3 is malicious and refused
    page = report(make_run(events=events))
    assert "1 of 4 clients stands out: 3" in page.text
    explained = "Known to be malicious: 1; among the 1 most suspicious: 1."
    assert f"Suspicion rests on refusals. {explained}" in page.text
    levels = [row["data-level"] for row in page.all("tr") if "data-level" in row]
    assert levels == ["high", "low", "low", "low"]


def test_content_of_run_folders_is_escaped(make_run, report):
    malicious = "<script>alert(1)</script>"
    events = [evaluation(0, **{malicious: 1.0}), arrival(0, accepted=False, reason=malicious)]
    result = default_result(**{malicious: 0.5})
    page = report(
        make_run("<b>$x", defense=malicious, attack=malicious, events=events, result=result)
    )
    assert not page.all("script")
    assert len(page.all("b")) == len(page.all("figcaption"))
    assert page.text.count(malicious) >= 4
    assert "<b>$x" in page.text


def test_names_no_font_can_draw_raise_no_warning(make_run, report):
    page = report(make_run("走る $x_", defense="走る $x^{", attack="_\\u0001$"))
    assert "走る $x^{" in page.text


def test_only_unfinished_runs_are_marked(make_run, report):
    page = report(make_run(events=[], finished=False), make_run("done", events=[]))
    assert page.text.count("unfinished\n") == 2  # in the table and above its section


@pytest.mark.parametrize("events", [[], [evaluation(0, ter=0.9)]])
def test_run_without_uploads_is_reported(make_run, report, events):
    page = report(make_run(events=events, finished=False))
    assert "No uploads were recorded" in page.text
    assert len(page.all("img")) == len(events)


def test_asr_appears_only_where_it_was_measured(make_run, report):
    assert "ASR" not in report(make_run("a", events=[])).text
    events = [evaluation(0, ter=0.9, asr=0.0), arrival(0), evaluation(1, ter=0.8, asr=0.7)]
    page = report(make_run("b", events=events, result=default_result(ter=0.8, asr=0.7)))
    assert "ASR over rounds" in page.text


def test_runs_with_different_main_metrics_share_a_page(make_run, report):
    events = [evaluation(0, rmse=3.0), arrival(0), evaluation(1, rmse=2.0)]
    page = report(make_run("a"), make_run("b", events=events, result=default_result(rmse=2.0)))
    assert "TER over rounds" in page.text
    assert "RMSE over rounds" in page.text
    assert "RMSE 2.000 ± 0.010" in page.text


def test_lipschitz_figure_needs_a_defined_factor(make_run, report):
    nothing = {"lipschitz": None, "threshold": None}
    page = report(make_run("a", events=[arrival(0, scores=nothing), arrival(1, scores={})]))
    assert "Lipschitz factors" not in page.text
    page = report(make_run("b", events=[arrival(0, scores=nothing), arrival(1)]))
    assert "Lipschitz factors" in page.text


def test_many_uploads_are_thinned_out(make_run, report):
    page = report(make_run(events=[arrival(t, t % 4) for t in range(9000)]))
    assert "One dot in 3 is shown" in page.text


@pytest.mark.parametrize("clients", [1, 2500])
def test_any_number_of_clients_can_be_drawn(make_run, tmp_path, clients):
    events = [arrival(c, c, malicious=c % 5 == 1, scores={}) for c in range(clients)]
    page = write_report([make_run(events=events)], tmp_path / "report")
    assert page.stat().st_size < 700_000
    malicious = sum(c % 5 == 1 for c in range(clients))
    assert f"{clients - malicious} honest and {malicious} malicious clients" in page.read_text()


@pytest.mark.usefixtures("_wide_only")
def test_client_that_attacks_for_a_while_stands_on_both_sides(make_run, tmp_path):
    events = [arrival(t, t % 4, malicious=t % 4 == 3 and t > 3, scores={}) for t in range(8)]
    page = write_report([make_run(events=events)], tmp_path / "report").read_text()
    assert "4 honest and 1 malicious clients" in page
    assert "Who attacked only for a while stands on both sides" in page


def test_refusals_are_counted_by_reason_and_group(make_run, report):
    events = [arrival(0, 0), arrival(1, 3), arrival(2, 0, accepted=False, reason="too_large")]
    text = " ".join(report(make_run(events=events)).text.split())
    assert "Reason Honest Malicious lipschitz 0 1 too_large 1 0".replace(" ", "") in (
        text.replace(" ", "")
    )


@pytest.mark.usefixtures("_wide_only")
def test_same_runs_give_the_same_files_and_stay_as_they_were(make_run, tmp_path):
    runs = [make_run("a"), make_run("b", defense="async_sgd", finished=False)]
    before = contents(tmp_path / "runs")
    first = contents(write_report(runs, tmp_path / "deep" / "report").parent)
    tables = ["answer", "refused-clients", "runs"]
    tables += [f"{what}-{run}" for what in ("clients", "refusals") for run in ("01-a", "02-b")]
    assert sorted(first) == [
        "clients-01-a.svg",
        "clients-02-b.svg",
        "index.html",
        "lipschitz-01-a.svg",
        "lipschitz-02-b.svg",
        "staleness-01-a.svg",
        "staleness-02-b.svg",
        *sorted(f"tables/{name}.{ending}" for name in tables for ending in ("csv", "tex")),
        "ter-over-rounds.svg",
        "trust-01-a.svg",
        "trust-02-b.svg",
    ]
    assert contents(write_report(runs, tmp_path / "deep" / "report").parent) == first
    assert contents(tmp_path / "runs") == before


def test_page_of_somebody_else_is_kept(make_run, tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(RunError, match="is not a report of SecureAFL and is kept"):
        write_report([make_run(events=[])], tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_place_that_cannot_be_written_is_named(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunError, match=r"file: cannot be written .*; choose another folder \(out\)"
    ):
        write_report([make_run(events=[])], tmp_path / "file")


def test_damaged_run_leaves_no_report(make_run, tmp_path):
    run = make_run(events=default_events())
    with (run / "events.jsonl").open("a") as file:
        file.write("damage\n")
    with pytest.raises(RunError, match="line 12: damaged"):
        write_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_reports_load_neither_torch_nor_pyplot():
    wanted = "import secureafl.report.page, sys; sys.exit(" + (
        "bool({'torch', 'matplotlib.pyplot'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", wanted], check=False).returncode == 0


def test_page_shows_who_holds_what(make_run, report, tmp_path):
    run = make_run()
    (run / "holdings.json").write_text('{"clients": [[5, 0], [1, 4], [0, 9], [3, 3]]}')
    page = report(run)
    assert "Who holds what" in page.text
    assert "A triangle marks malicious clients" in page.text
    assert (tmp_path / "report" / "holdings-01-run.svg").is_file()
    first = contents(tmp_path / "report")
    report(run)
    assert contents(tmp_path / "report") == first


@pytest.mark.parametrize("content", ["{}", '{"clients": []}', '{"clients": [[1], [2, 3]]}', "[]"])
def test_damaged_table_of_holdings_is_told_in_one_line(make_run, report, content):
    run = make_run()
    (run / "holdings.json").write_text(content)
    with pytest.raises(RunError, match=r"holdings\.json") as caught:
        report(run)
    assert "\n" not in str(caught.value)
