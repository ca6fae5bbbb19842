"""The page beside a run that is really going on."""

import signal
import time

import pytest

# 12 clients of whom 3 upload noise; more rounds than the test waits for.
RUN = ("--clients", 12, "--set", "malicious=3", "--attack", "gaussian", "--defense", "secure_afl")
RUN += ("--rounds", 1_000_000)
SEEN = """() => {
    const number = (element) => Number(element?.textContent.split(' ')[0].replaceAll(',', ''));
    const rows = [...document.querySelectorAll('.lanes tbody tr')];
    return {
        rounds: number(document.querySelector('#facts dd')),
        state: document.querySelector('#state').dataset.state,
        malicious: rows.map((row) => row.querySelector('.malicious') !== null),
        uploads: rows.map((row) => number(row.lastElementChild)),
        sessions: document.querySelectorAll('[aria-label=Sessions] thead th').length - 1,
    };
}"""


def wait_until(page, holds, seconds=120):
    """What the page shows once `holds` is true of it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen = page.evaluate(SEEN)
        if holds(seen):
            return seen
        page.wait_for_timeout(100)
    pytest.fail(f"the page got no further than {seen}")


def test_page_follows_a_run_names_the_attackers_and_survives_kill_and_resume(
    cli, serve, open_page, monkeypatch
):
    monkeypatch.setattr("secureafl.runs.watch.QUIET_SECONDS", 3.0)
    (cli.folder / "runs").mkdir()
    page = open_page(serve(cli.folder / "runs"))
    page.get_by_text("No run here yet").wait_for()
    words = ("tiny.toml", *RUN, "--quiet", "--checkpoint-seconds", 0.5, "--out", "runs/live")
    process = cli.start("run", *words)
    try:
        seen = wait_until(page, lambda s: s["state"] == "running" and s["rounds"] > 300)
        assert seen["malicious"] == [True] * 3 + [False] * 9
        assert sum(seen["uploads"]) == seen["rounds"]
        assert "3 of 12 clients stand out" in page.locator("#headline").text_content()
        before = wait_until(page, lambda s: s["rounds"] > seen["rounds"])
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(page, lambda s: s["state"] == "quiet")
        process = cli.start("resume", "runs/live", "--quiet", "--checkpoint-seconds", 0.5)
        wait_until(page, lambda s: s["state"] == "running" and s["sessions"] == 2)
        after = wait_until(page, lambda s: s["rounds"] > before["rounds"] + 300)
        assert sum(after["uploads"]) == after["rounds"], "rounds done again were counted twice"
        assert after["malicious"] == [True] * 3 + [False] * 9
    finally:
        process.kill()
        process.communicate()
