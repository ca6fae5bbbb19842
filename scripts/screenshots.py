"""Take the README's pictures of the dashboard: `python scripts/screenshots.py`.

Runs SecureAFL and AsyncSGD under a backdoor first (some minutes; a folder given as the argument
keeps the runs for the next time). Needs the dev group and Chromium.
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

REPOSITORY = Path(__file__).parent.parent
PICTURES = REPOSITORY / "docs" / "images"
COLOURS = 128  # of a picture: a page has few, and so its file is small


class Shot(NamedTuple):
    """One picture."""

    name: str
    scheme: str
    size: tuple[int, int]
    query: dict[str, Any]


def main() -> None:
    """Run, look, save."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        run(folder)
        with Dashboard(folder, "127.0.0.1", 0, None) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            take(server.address, shots(sorted(server.runs.names())))
            server.shutdown()


def run(folder: Path) -> None:
    """What the pictures show; runs that are there already are kept."""
    words = ["compare", REPOSITORY / "experiments" / "quick.toml", "--attacks", "scaling"]
    words += ["--defenses", "secure_afl,async_sgd", "--rounds", 1000, "--out", folder]
    subprocess.run([sys.executable, "-m", "secureafl", *map(str, words)], check=True)


def shots(names: list[str]) -> list[Shot]:
    """SecureAFL in front, AsyncSGD laid over it."""
    (front,) = [name for name in names if "secure_afl" in name]
    others = [name for name in names if name != front]
    overview, client = {"run": front, "with": others}, {"run": front, "client": 0}
    return [
        Shot("dashboard-light.png", "light", (1280, 1400), overview),
        Shot("dashboard-dark.png", "dark", (1280, 1400), overview),
        Shot("dashboard-client.png", "light", (1280, 620), client),
        Shot("dashboard-narrow.png", "dark", (390, 844), overview),
    ]


def take(address: str, wanted: list[Shot]) -> None:
    """Each picture with a browser of its own size and scheme."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("screenshots.py: needs Chromium, Debian's package 'chromium'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot in wanted:
            picture = Image.open(io.BytesIO(_look(browser, address, shot)))
            picture.quantize(COLOURS).save(PICTURES / shot.name, optimize=True)
            print(PICTURES / shot.name)
        browser.close()


def _look(browser: Browser, address: str, shot: Shot) -> bytes:
    width, height = shot.size
    viewport: Any = {"width": width, "height": height}
    context = browser.new_context(color_scheme=shot.scheme, viewport=viewport)  # pyrefly: ignore
    page = context.new_page()
    page.goto(f"{address}?{urlencode(shot.query, doseq=True)}")
    page.locator("canvas").first.wait_for()
    page.wait_for_timeout(2500)  # until what is read, drawn and moved has come to rest
    found = page.screenshot()
    context.close()
    return found


if __name__ == "__main__":
    main()
