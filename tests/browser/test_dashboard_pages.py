"""What people see and can do, on run folders written by hand."""

import json
import os

import pytest
from browser.looks import CUT, FAINT
from dashboard.folders import arrival, evaluation, events, lines, write_run

expect = pytest.importorskip("playwright.sync_api").expect

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs" / "first", events(800, 20), 800, 20)


def rounds(page):
    return page.locator("#facts dd").first


def ready(page):
    page.locator(".lanes tbody tr").first.wait_for()
    return page


def test_everything_is_there_by_sight_and_by_table(serve, open_page, run):
    page = ready(open_page(serve(run)))
    for title in ("TER over rounds", "ASR over rounds", "Lipschitz factors of uploads"):
        assert page.get_by_role("heading", name=title).is_visible()
    for title in ("Updates per second", "Staleness of uploads", "Clients by suspicion"):
        assert page.get_by_role("heading", name=title).is_visible()
    assert page.locator("canvas").count() >= 5
    pictures = page.get_by_role("img").all()
    assert all(picture.get_attribute("aria-label") for picture in pictures)
    page.get_by_text("Figures as a table").first.click()
    rows = page.get_by_role("region", name="TER over rounds, figures").get_by_role("row")
    expect(rows).to_have_count(1 + 8)
    page.get_by_text("Settings", exact=True).click()
    assert page.get_by_text("defense.kind").is_visible()
    assert "refused, the model moved without it" in page.locator("main").inner_text()


def test_page_works_by_keyboard_alone(serve, open_page, run):
    page = ready(open_page(serve(run)))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.closest('.lanes') !== null"))
        if seen[-1]:
            break
    assert seen[-1], "no client was reached with the tabulator"
    page.keyboard.press("Enter")
    page.get_by_text("Place by suspicion").wait_for()
    assert page.get_by_role("heading", name="Lipschitz factor over rounds").is_visible()
    expect(page.locator("#name")).to_have_text("first")
    page.get_by_role("link", name="all clients").focus()
    page.keyboard.press("Enter")
    ready(page)


def test_runs_are_laid_over_each_other(serve, open_page, run, tmp_path):
    write_run(tmp_path / "runs" / "second", events(400, 20, seed=2), 400, 20)
    page = ready(open_page(serve(tmp_path / "runs") + "?run=first"))
    legend = page.locator(".u-legend").first
    assert "second" not in legend.text_content()
    page.get_by_label("Lay second over").check()
    expect(legend).to_contain_text("second")
    assert "with=second" in page.url
    page.get_by_role("link", name="second").click()
    expect(page.locator("#name")).to_have_text("second")


def runs_listed(page):
    return page.get_by_role("region", name="Runs").get_by_role("rowheader")


def test_list_of_runs_is_sorted_and_filtered_the_newest_first(serve, open_page, tmp_path):
    for number, (name, error) in enumerate((("b/old", 0.3), ("a", 0.1), ("c/d/new", 0.2))):
        path = write_run(tmp_path / "runs" / name, [evaluation(0, ter=error, asr=0.9)], 9, 5)
        os.utime(path / "events.jsonl", (10**9 + number, 10**9 + number))
    page = open_page(serve(tmp_path / "runs"))
    expect(runs_listed(page)).to_have_text(["c/d/new", "a", "b/old"])
    expect(page.locator("#name")).to_have_text("c/d/new")
    page.get_by_role("button", name="Error").click()
    expect(runs_listed(page)).to_have_text(["a", "c/d/new", "b/old"])
    page.get_by_role("button", name="Error").click()
    expect(runs_listed(page)).to_have_text(["b/old", "c/d/new", "a"])
    page.get_by_label("Filter").fill("NEW unfinished")
    expect(runs_listed(page)).to_have_text(["c/d/new"])
    expect(page.get_by_text("1 of 3")).to_be_visible()
    row = page.get_by_role("row", name="c/d/new")
    assert "TER 0.200" in row.inner_text()
    assert "0.900" in row.inner_text()


def test_honest_clients_who_are_silenced_are_told_like_attackers_who_are_caught(
    serve, open_page, tmp_path
):
    found = [evaluation(0, ter=0.25, asr=0.5)]
    for i in range(200):
        client = i % 10
        found.append(arrival(i, client, accepted=client not in (0, 7), malicious=client == 0))
    run = write_run(tmp_path / "run", found, 200, 10)
    page = ready(open_page(serve(run)))
    assert page.locator("#headline").inner_text() == "2 of 10 clients stand out: 0, 7 (honest: 7)"
    told = "Caught: 1 of 1 malicious client (0). Silenced: 1 of 9 honest clients (7)."
    assert page.locator("#refused").inner_text() == told
    facts = page.locator("#facts").inner_text().split("\n")
    for fact in (["TER, last", "0.250"], ["ASR, last", "0.500"], ["Attackers caught", "1 of 1"]):
        assert facts[facts.index(fact[0]) + 1] == fact[1]
    assert facts[facts.index("Honest clients silenced") + 1] == "1 of 9"
    first, second = (row.inner_text() for row in page.locator(".lanes tbody th").all()[:2])
    assert "malicious, caught" in first
    assert "honest, silenced" in second
    (run / "server").mkdir()  # a deployment: nobody knows who is honest
    page.reload()
    expect(ready(page).locator("#refused")).to_contain_text("Whether those are honest is not known")
    assert "honest," not in page.locator(".lanes").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_fit_in_light_and_dark(serve, open_page, run, tmp_path, scheme):
    write_run(tmp_path / "runs" / "second", events(50, 20, seed=2), 400, 20)
    size = {"width": 360, "height": 740}
    page = open_page(serve(tmp_path / "runs") + "?run=first", color_scheme=scheme, viewport=size)
    ready(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(CUT) == []
    assert page.evaluate(FAINT) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 384) == (scheme == "light")


def test_bars_stand_over_the_middle_of_what_they_count(serve, open_page, tmp_path):
    found = [arrival(i, i % 5, staleness=i % 100) for i in range(200)]  # four values a bar
    page = ready(open_page(serve(write_run(tmp_path / "run", found, 200, 5))))
    card = page.locator(
        "section.card", has=page.get_by_role("heading", name="Staleness of uploads")
    )
    card.get_by_text("Figures as a table").click()
    table = card.get_by_role("region", name="Staleness of uploads, figures")
    middles = table.get_by_role("rowheader").all_inner_texts()
    assert middles == [f"{4 * bar + 1.5:g}" for bar in reversed(range(25))]


def test_broken_folder_is_told_and_the_rest_is_shown(serve, open_page, run):
    (run / "experiment.toml").write_text("seed = [")
    (run / "provenance.json").unlink()
    with (run / "events.jsonl").open("a") as file:
        file.write("garbage\n" + '{"event": "arr')
    page = ready(open_page(serve(run)))
    problems = page.get_by_role("alert").inner_text()
    for told in ("not valid TOML", "provenance.json: missing", "1 damaged line was left out"):
        assert told in problems
    assert page.get_by_role("heading", name="TER over rounds").is_visible()


def test_folder_that_breaks_while_one_looks_is_told(serve, open_page, run):
    page = ready(open_page(serve(run)))
    (run / "events.jsonl").unlink()
    page.get_by_text("events.jsonl: missing").wait_for()
    (run / "events.jsonl").write_text(lines(events(100, 20)))
    expect(rounds(page)).to_have_text("100 of 800")
    assert page.get_by_text("events.jsonl: missing").count() == 0


def test_text_of_a_run_folder_stays_text(serve, open_page, tmp_path):
    found = [evaluation(0, **{HOSTILE: 0.5}), arrival(0, accepted=False, reason=HOSTILE)]
    run = write_run(tmp_path / "runs" / HOSTILE.replace("/", ""), found, 10, 4)
    (run / "experiment.toml").write_text(f'[defense]\nkind = "{HOSTILE}"\n')
    (run / "provenance.json").write_text(
        json.dumps({HOSTILE: HOSTILE, "sessions": [{"a": HOSTILE}]})
    )
    page = ready(open_page(serve(run)))
    page.get_by_text("Where the numbers come from").click()
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("main").inner_text()
    page.get_by_role("link", name="0", exact=True).first.click()
    page.get_by_text("Place by suspicion").wait_for()
    assert page.locator("img").count() == 0


def test_defence_that_gives_no_sign_is_said_to(serve, open_page, tmp_path):
    mute = [arrival(i, i % 5, scores={}) for i in range(50)]
    page = ready(open_page(serve(write_run(tmp_path / "mute", mute, 50, 5))))
    assert "gives no sign of who is poisoning" in page.locator("#explanation").text_content()
    assert "None of 5 clients stands out" in page.locator("#headline").text_content()


def test_page_is_refused_without_its_token(serve, browser, run):
    address = serve(run, token="a-token-of-the-tests")
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(address.split("?")[0]).status == 403
    assert "needs its token" in page.locator("body").inner_text()
    assert page.goto(address).status == 200
    assert "token" not in page.url
    ready(page)
    context.close()


def test_lost_connection_is_told_and_mended(cli, browser, run):
    def start(port):
        process = cli.start("dashboard", run, "--port", port)
        return process, process.stdout.readline().split()[1]

    process, address = start(0)
    page = browser.new_page()
    try:
        page.goto(address)
        expect(rounds(page)).to_have_text("800 of 800")
        process.kill()
        process.communicate()
        expect(page.locator("#link")).to_contain_text("connection lost", timeout=12_000)
        with (run / "events.jsonl").open("a") as file:
            file.write(lines([arrival(800)]))
        process, _ = start(int(address.rsplit(":", 1)[1].strip("/")))
        expect(page.locator("#link")).to_have_text("live", timeout=12_000)
        expect(rounds(page)).to_have_text("801 of 800", timeout=12_000)
    finally:
        page.close()
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_hundred_thousand_rounds_and_a_thousand_clients_stay_light(serve, open_page, tmp_path):
    run = write_run(tmp_path / "big", events(100_000, 1000), 100_000, 1000)
    page = open_page(serve(run))
    paint = page.evaluate(
        "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    )
    page.locator(".lanes tbody tr").first.wait_for()
    shown = page.evaluate("performance.now()")
    expect(rounds(page)).to_contain_text("100,000 of", timeout=60_000)
    whole = page.evaluate("performance.now()")
    assert paint < 2000
    assert shown < 4000  # on a busy machine
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    print(f"first paint {paint:.0f} ms, data {shown:.0f} ms, all {whole:.0f} ms, heap {heap:,} B")
    assert heap < 20e6
    with (run / "events.jsonl").open("a") as file:
        for now in range(100_000, 110_000):
            file.write(lines([arrival(now, now % 1000)]))
    expect(rounds(page)).to_contain_text("110,000 of", timeout=60_000)
    session.send("HeapProfiler.collectGarbage")
    assert session.send("Runtime.getHeapUsage")["usedSize"] < 1.2 * heap
