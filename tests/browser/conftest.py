"""A real Chromium, without a window, and a dashboard for it to look at."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secureafl.dashboard.server import Dashboard

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


# Playwright keeps an event loop running in this thread, and later modules may run their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium, Debian's package 'chromium'")
    with playwright.sync_playwright() as started:
        # Its sandbox needs rights that containers do not give; only our own pages are opened.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Any]]:
    """Opens pages; at the end, none may have written an error to its console."""
    errors: list[str] = []
    contexts: list[Any] = []

    def opened(address: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(12_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr("secureafl.dashboard.streams._SECONDS", 0.1)
    monkeypatch.setattr("secureafl.dashboard.streams._LIST_SECONDS", 0.3)
    monkeypatch.setattr("secureafl.dashboard.runs._SEARCH_SECONDS", 0.2)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    started: list[Dashboard] = []

    def start(root: Path, token: str | None = None) -> str:
        server = Dashboard(root, "127.0.0.1", 0, token)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
        return server.address

    yield start
    for server in started:
        server.shutdown()
        server.server_close()
