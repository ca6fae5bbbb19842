"""Take the docs' pictures of the report and the dashboard: `python scripts/screenshots.py`.

Runs five defences under three attacks first, two seeds each (about half an hour of one core; a
folder given as the argument keeps the runs for the next time). Needs the dev group and Chromium.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from secureafl.dashboard.server import Dashboard
from secureafl.report.page import write_report

REPOSITORY = Path(__file__).parent.parent
PICTURES = REPOSITORY / "docs" / "images"
COLOURS = 128  # of a picture: a page has few, and so its file is small
GRID = """
title = "What the pictures show"
[base]
rounds = 400
clients = 10
malicious = 2
[base.task]
kind = "fashion_mnist"
data_dir = "embedded"
[base.training]
learning_rate = 0.05
[base.evaluation]
every = 20
late = 3
[axes]
defense = ["async_sgd", "kardam", "secure_afl", "trust_clipping", "basgd"]
attack = ["none", "label_flip", "scaling"]
seed = [0, 1]
"""
FRONT, OTHERS = "secure_afl-scaling-seed0", ["async_sgd-scaling-seed0"]


class Shot(NamedTuple):
    """One picture."""

    name: str
    scheme: str
    size: tuple[int, int]
    address: str


def main() -> None:
    """Run, look, save."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        runs = run(folder)
        page = write_report(sorted(runs.iterdir()), Path(scratch) / "report")
        with Dashboard(runs, "127.0.0.1", 0, None) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            take([*report_shots(page), *dashboard_shots(server.address)])
            server.shutdown()


def run(folder: Path) -> Path:
    """What the pictures show; runs that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.toml").write_text(GRID)
    words = ["sweep", folder / "grid.toml", "--out", folder / "runs"]
    subprocess.run([sys.executable, "-m", "secureafl", *map(str, words)], check=True)
    return folder / "runs"


def report_shots(page: Path) -> list[Shot]:
    """The first screen of the report."""
    return [
        Shot("report-light.png", "light", (1280, 800), page.as_uri()),
        Shot("report-dark.png", "dark", (1280, 800), page.as_uri()),
        Shot("report-narrow.png", "dark", (390, 844), page.as_uri()),
    ]


def dashboard_shots(address: str) -> list[Shot]:
    """SecureAFL in front, AsyncSGD laid over it."""
    overview = f"{address}?{urlencode({'run': FRONT, 'with': OTHERS}, doseq=True)}"
    client = f"{address}?{urlencode({'run': FRONT, 'client': 3})}"
    return [
        Shot("dashboard-light.png", "light", (1280, 1400), overview),
        Shot("dashboard-dark.png", "dark", (1280, 1400), overview),
        Shot("dashboard-client.png", "light", (1280, 620), client),
        Shot("dashboard-narrow.png", "dark", (390, 844), overview),
    ]


def take(wanted: list[Shot]) -> None:
    """Each picture with a browser of its own size and scheme."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("screenshots.py: needs Chromium, Debian's package 'chromium'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot in wanted:
            picture = Image.open(io.BytesIO(_look(browser, shot)))
            picture.quantize(COLOURS).save(PICTURES / shot.name, optimize=True)
            print(PICTURES / shot.name)
        browser.close()


def _look(browser: Browser, shot: Shot) -> bytes:
    width, height = shot.size
    viewport: Any = {"width": width, "height": height}
    context = browser.new_context(color_scheme=shot.scheme, viewport=viewport)  # pyrefly: ignore
    page = context.new_page()
    page.goto(shot.address)
    page.wait_for_timeout(2500)  # until what is read, drawn and moved has come to rest
    found = page.screenshot()
    context.close()
    return found


if __name__ == "__main__":
    main()
