"""The report of a sweep of thirty runs, as people see it."""

import csv
import io
import json
import random
import time
from pathlib import Path

import pytest
from browser.looks import CUT, FAINT
from report.run_folders import EXPERIMENT, arrival, default_result, evaluation

from secureafl.report.page import write_report

Image = pytest.importorskip("PIL.Image")
expect = pytest.importorskip("playwright.sync_api").expect

DEFENSES = {"async_sgd": 0.8, "basgd": 0.5, "kardam": 0.4, "secure_afl": 0.2, "trust_clipping": 0.1}
ATTACKS = ("none", "label_flip", "scaling")
CLIENTS, ROUNDS = 10, 200
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
# All runs look alike, and what is folded takes no time to look at.
UNFOLDED = """() => document.querySelectorAll('details:not(.run), .run:first-of-type')
    .forEach((one) => (one.open = true))"""


def events_of(defense, attack, rng):
    """A fifth of the clients attack, unless nobody does; kardam refuses one honest client."""
    for now in range(ROUNDS):
        if now % 20 == 0:
            error = DEFENSES[defense] + 0.5 / (1 + now / 50) + rng.uniform(0, 0.1)
            yield evaluation(
                now, ter=error, **({"asr": rng.random()} if attack == "scaling" else {})
            )
        client = rng.randrange(CLIENTS)
        bad = attack != "none" and client < CLIENTS // 5
        refused = rng.random() < 0.8 and (bad or (defense, client) == ("kardam", 9))
        facts = {"malicious": bad, "accepted": not refused, "staleness": rng.randrange(9)}
        yield arrival(now, client, **facts)


def write_sweep(folder: Path) -> list[Path]:
    rng, made = random.Random(1), []
    cells = [(d, a, seed) for d in DEFENSES for a in ATTACKS for seed in range(2)]
    for defense, attack, seed in cells:
        path = folder / f"{defense}-{attack}-seed{seed}"
        path.mkdir(parents=True)
        told = {"seed": seed, "rounds": ROUNDS, "defense": defense, "attack": attack, "alpha": 0.8}
        (path / "experiment.toml").write_text(EXPERIMENT.format(**told))
        (path / "provenance.json").write_text(json.dumps({"seed": seed, "data": "by hand"}))
        lines = [json.dumps(event) + "\n" for event in events_of(defense, attack, rng)]
        (path / "events.jsonl").write_text("".join(lines))
        asr = {"asr": rng.random()} if attack == "scaling" else {}
        result = default_result(ter=DEFENSES[defense] + rng.uniform(0, 0.1), **asr)
        (path / "result.json").write_text(json.dumps(result))
        made.append(path)
    return made


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thirty")
    runs = write_sweep(folder / "runs")
    began = time.process_time()
    page = write_report(runs, folder / "report")
    assert len(runs) == 30
    assert time.process_time() - began < 10
    assert page.stat().st_size < 2e6
    return page


def test_answer_stands_on_the_first_screen(open_page, page_file):
    page = open_page(page_file.as_uri(), viewport=DESK)
    table = page.locator("section", has=page.locator("#answer")).locator("table")
    for shown in (page.locator("#answer"), table, page.get_by_label("Contents")):
        box = shown.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] < 800
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    rows = table.locator("tbody th").all_inner_texts()
    assert rows == ["trust_clipping", "secure_afl", "kardam", "basgd", "async_sgd"]
    assert "kardam" in page.get_by_text("Honest clients silenced:").first.inner_text()


def test_nothing_is_cut_off_or_faint_on_a_desk_or_a_phone_in_light_or_dark(open_page, page_file):
    page = open_page(page_file.as_uri())
    page.evaluate(UNFOLDED)
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        if size is PHONE:  # on a desk a wide table may be scrolled
            assert page.evaluate(CUT) == []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(FAINT) == []
            assert (brightness(page.locator("figure img").first) > 128) == (scheme == "light")


def brightness(element):
    """The mean over an element, from 0 to 255."""
    picture = Image.open(io.BytesIO(element.screenshot()))
    return picture.convert("L").resize((1, 1)).getpixel((0, 0))


def test_every_table_comes_as_csv_and_latex_by_a_button(open_page, page_file):
    page = open_page(page_file.as_uri(), viewport=DESK)
    tables = page.locator("table").count()
    for kind in ("CSV", "LaTeX"):
        assert page.locator(f"a[aria-label$='as {kind}']").count() == tables
    with page.expect_download() as found:
        page.locator("a[download='answer.csv']").click()
    text = Path(found.value.path()).read_text()
    assert text == (page_file.parent / "tables" / "answer.csv").read_text()
    head, *rows = csv.reader(io.StringIO(text))
    assert head[:3] == ["Defence", "no attack, TER mean", "no attack, TER std"]
    assert len(rows) == len(DEFENSES)


def test_link_to_a_run_unfolds_it(open_page, page_file):
    page = open_page(page_file.as_uri(), viewport=DESK)
    assert page.locator("details[open]").count() == 0
    page.get_by_label("Contents").get_by_text("The runs").click()
    page.get_by_text("A line for each of the 30 runs").click()
    page.locator("table a", has_text="kardam-scaling-seed1").click()
    unfolded = page.locator("details.run[open]")
    expect(unfolded).to_have_count(1)
    expect(unfolded.get_by_text("Silenced: 1 of 8 honest clients (9).")).to_be_visible()
