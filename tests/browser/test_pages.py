"""Each page of each part, in a real browser: it renders without errors, can be read by everybody, and fits a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browsing import inspect
from tests.browser.demonstration import Demonstration, parts
from tests.browser.walking import Walk

PATHS = [page.path for part in parts() for page in part.pages]
LISTED = [(page.label, page.path) for part in parts() for page in part.pages if page.label]
NewPage = Callable[..., Page]

each_page = pytest.mark.parametrize("path", PATHS)


def test_links_lead_to_every_page(walked: Walk) -> None:
    """Every page is reached from the overview by links, and no link leads to nothing."""
    assert {path for path in PATHS if not walked.addresses.get(path)} == set()
    assert walked.strays == []


@each_page
def test_it_renders(path: str, walked: Walk, new_page: NewPage) -> None:
    """A page of each route loads without an error, a violated policy or a script of somebody else; its title is its
    heading, and the navigation marks the page."""
    page = new_page()
    for address in walked.addresses[path]:
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200
        assert page.title().startswith(page.locator("h1").inner_text())
        if path in dict(LISTED).values():
            expect(page.locator("nav [aria-current=page]")).to_have_count(1)


@each_page
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_its_texts_have_contrast(path: str, theme: str, walked: Walk, new_page: NewPage) -> None:
    """Every visible text has the contrast of WCAG AA against what is behind it, whatever theme the system has."""
    page = new_page(color_scheme=theme)
    for address in walked.addresses[path]:
        page.goto(address)
        assert inspect(page, contrast=True) == [], address


@each_page
def test_its_parts_have_names(path: str, walked: Walk, new_page: NewPage) -> None:
    """Fields have labels, buttons names, tables headers, headings an order; there are no attributes that the page's
    policy forbids."""
    page = new_page()
    for address in walked.addresses[path]:
        page.goto(address)
        assert inspect(page, structure=True) == [], address


@each_page
def test_it_fits_a_phone(path: str, walked: Walk, new_page: NewPage) -> None:
    """On a screen of 360 pixels the page is not wider, and what is to be pressed has 24 pixels."""
    page = new_page(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    for address in walked.addresses[path]:
        page.goto(address)
        assert inspect(page, targets=True) == [], address


@pytest.mark.parametrize(("label", "path"), LISTED)
def test_it_can_be_read_without_javascript(
    label: str, path: str, demo: Demonstration, walked: Walk, new_page: NewPage
) -> None:
    """Without JavaScript a page has the same headings, tables and rows as with it."""
    texts = []
    for switched_on in (True, False):
        page = new_page(java_script_enabled=switched_on)
        page.goto(f"{demo.url}/")
        page.get_by_role("navigation").get_by_role("link", name=label, exact=True).click()
        page.wait_for_url(f"**{path}")
        texts.append((page.locator("h1, h2, th").all_inner_texts(), page.locator("main tr").count()))
    assert texts[0] == texts[1]
