"""A page has the theme of the system until a visitor presses the theme button. Then it keeps the chosen theme."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.browsing import inspect
from tests.browser.demonstration import Demonstration

_VARIABLES = """() => {
  const names = [...document.styleSheets[0].cssRules].flatMap((rule) => [...(rule.style ?? [])]);
  const style = getComputedStyle(document.documentElement);
  return [...new Set(names)].filter((one) => one.startsWith("--")).map((one) => [one, style.getPropertyValue(one)]);
}"""
_BACK = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_button_changes_the_theme(system: str, demo: Demonstration, new_page: Callable[..., Page]) -> None:
    """The button switches to the other theme and back, on the next page too, always with enough contrast."""
    page = new_page(color_scheme=system)
    page.goto(f"{demo.url}/")
    first = page.evaluate(_BACK)
    button = page.get_by_role("button", name="Dark or light")
    button.click()
    other = page.evaluate(_BACK)
    assert other != first
    assert inspect(page, contrast=True) == []
    page.goto(f"{demo.url}/members")
    assert page.evaluate(_BACK) == other
    assert inspect(page, contrast=True) == []
    button.click()
    assert page.evaluate(_BACK) == first


def test_both_ways_to_dark_are_the_same(demo: Demonstration, new_page: Callable[..., Page]) -> None:
    """The dark theme has the same colours, whether the system or the button chose it."""
    seen = []
    for system, pressed in (("dark", False), ("light", True)):
        page = new_page(color_scheme=system)
        page.goto(f"{demo.url}/")
        if pressed:
            page.get_by_role("button", name="Dark or light").click()
        seen.append(page.evaluate(_VARIABLES))
    assert seen[0] == seen[1]
    assert len(seen[0]) > 10
