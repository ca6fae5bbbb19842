"""The site of the docs, as people see it and search it, from a file and without a network."""

import pytest
from browser.looks import FAINT
from docs_names import ROOT
from test_public import FOLDERS, PUBLIC
from test_site import build

import secureafl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCREENS = {"light": {"width": 1280, "height": 800}, "dark": {"width": 390, "height": 844}}
PAGES = ("index", "start", "gallery", "notebooks/results", "reference/running", "results/attacks")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    assert build(ROOT / "docs", out) == ("", 0)
    return out


def test_every_public_name_and_plug_in_has_a_place(site):
    inventory = pytest.importorskip("sphinx.util.inventory").InventoryFile
    found = inventory.loads((site / "objects.inv").read_bytes(), uri="").data
    known = {name for kind, names in found.items() if kind.startswith("py:") for name in names}
    folders = (vars(getattr(secureafl, folder)).items() for folder in FOLDERS - {"testing"})
    tables = [value for items in folders for name, value in items if name.isupper()]
    classes = {cls for table in tables for cls in table.values()}
    places = {name.rpartition(".")[2] for name in known}
    assert {*PUBLIC, *(f"secureafl.{folder}" for folder in FOLDERS)} - known == set()
    assert len(classes) > 60
    assert {cls.__name__ for cls in classes} - places == set()


@pytest.mark.parametrize("scheme", SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_the_screen_can_be_read_and_asks_for_nothing_else(site, open_page, name, scheme):
    page = open_page("about:blank", color_scheme=scheme, viewport=SCREENS[scheme])
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(FAINT) == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("trust_clipping", "reference/defenses.html"),
        ("load_model", "reference/results.html"),
        ("reproduce", "reproduce.html"),
    ],
)
def test_search_finds_first_what_was_asked_for(site, open_page, words, first):
    page = open_page(f"{(site / 'search.html').as_uri()}?q={words}")
    link = page.locator("#search-results li a").first
    assert first in link.get_attribute("href")
