"""Each page of each part, in a real browser: it renders without errors, can be read by everybody, and fits a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.browsing import Troubles, inspect
from tests.browser.demonstration import PARTS, Demonstration
from tests.browser.walking import Walk

PATHS = [page.path for part in PARTS for page in part.pages]
LISTED = [(page.label, page.path) for part in PARTS for page in part.pages if page.label]
Opened = tuple[BrowserContext, Troubles]

each_page = pytest.mark.parametrize("path", PATHS)


def test_links_lead_to_every_page(walked: Walk) -> None:
    """Every page is reached from the overview by links, and no link leads to nothing."""
    assert {path for path in PATHS if not walked.addresses.get(path)} == set()
    assert walked.strays == []


@each_page
def test_it_can_be_read_by_everybody(path: str, walked: Walk, tab: Page) -> None:
    """A page of each route loads without an error, and runs no foreign script. Its title is its heading, and the
    navigation marks it. In both themes every text has the contrast of WCAG AA. Each field has a label, each button a
    name, and each table headers. No heading skips a level. On a screen of 360 pixels the page is not too wide, and each
    link and button is at least 24 pixels wide and high.

    One test checks all this, because to load a page takes longer than to look at it.
    """
    for address in walked.addresses[path]:
        tab.set_viewport_size({"width": 1200, "height": 900})
        tab.emulate_media(color_scheme="light")
        answer = tab.goto(address)
        assert answer is not None
        assert answer.status == 200
        assert tab.title().startswith(tab.locator("h1").inner_text())
        if path in dict(LISTED).values():
            expect(tab.locator("header nav [aria-current=page]")).to_have_count(1)
        found = inspect(tab, contrast=True, structure=True)
        tab.emulate_media(color_scheme="dark")
        found += [f"dark: {one}" for one in inspect(tab, contrast=True)]
        tab.set_viewport_size({"width": 360, "height": 740})
        found += [f"phone: {one}" for one in inspect(tab, targets=True)]
        assert found == [], address


@each_page
def test_axe_finds_nothing(path: str, walked: Walk, unguarded_tab: Page) -> None:
    """axe-core, which other projects use too, finds nothing in a page of each route, on a phone."""
    unguarded_tab.set_viewport_size({"width": 360, "height": 740})
    unguarded_tab.goto(walked.addresses[path][0])
    found = Axe().run(unguarded_tab).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []


@each_page
def test_it_can_be_read_without_javascript(path: str, walked: Walk, tab: Page, scriptless_tab: Page) -> None:
    """Without JavaScript a page of each route has the same headings and rows as with it."""
    texts = []
    for page in (tab, scriptless_tab):
        page.goto(walked.addresses[path][0])
        # all texts, also hidden ones: a live update may just replace a text
        texts.append((page.locator("h1, h2, th").all_text_contents(), page.locator("main tr").count()))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("path", "status"), [("/no-such-page", 404), ("/audit?limit=x", 400)])
def test_errors_have_a_page(path: str, status: int, demo: Demonstration, contexts: Callable[..., Opened]) -> None:
    """A wrong address is answered by a page with the navigation and the reason, which can be read like the others."""
    context, troubles = contexts(viewport={"width": 360, "height": 740})
    troubles.allow(f"{status}")
    page = context.new_page()
    answer = page.goto(demo.url + path)
    assert answer is not None
    assert answer.status == status
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert inspect(page, contrast=True, structure=True, targets=True) == []
