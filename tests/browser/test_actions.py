"""Each action of each part, as a person does it: the button, the preview, the confirmation, the result; or the refusal.

The buttons are found on the pages themselves. The data of a test are its own, and the same as those of `demo`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.browsing import Troubles, inspect
from tests.browser.demonstration import PARTS, Demonstration
from tests.browser.walking import Walk

ACTIONS = [action.name for part in PARTS for action in part.actions]

REPEATABLE = {"start-replay", "delete-group", "run-beat-entry-now"}
"""Actions that two people may both confirm from the same preview. Each makes an operation or a run of its own."""

each_action = pytest.mark.parametrize("name", ACTIONS)

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's, of redis-py 8

FILLED = {"due": "2h", "in": "2h", "note": "looked at it", "reason": "a test", "rate": "5", "text": "looked at it"}
"""What is written into the fields of the forms, by the name of the field."""


class Shop:
    """A dashboard with data of its own, of which the walk through `demo` knows the addresses."""

    def __init__(self, demonstration: Demonstration, demo: Demonstration, walked: Walk) -> None:
        self.here = demonstration
        self._there = demo.url
        self._walked = walked

    def ask(self, page: Page, name: str) -> None:
        """Open a page with a form of this action, fill in the form, and press its button.

        If the preview selects nothing, the next page is tried. A page that only `demo` has is skipped.
        """
        tried = []
        for form in self._walked.forms[name][:12]:
            opened = page.goto(form.page.replace(self._there, self.here.url))
            if opened is None or opened.status == 404:
                continue
            shown = page.locator(f"form[action='/actions/{name}']").nth(form.number)
            if not shown.is_visible():
                page.locator("details", has=shown).locator("> summary").first.click()
                expect(shown).to_be_visible()
            fill(shown)
            with page.expect_navigation():
                shown.locator("button:not([type=button]):visible").first.click()
            if page.get_by_role("button", name="Do it").count():
                return
            tried.append(f"{form.page}: {page.locator('main').inner_text()}")
        pytest.fail(f"no page has a form of {name} that would change something: {tried}")

    def state(self) -> Any:
        """What the store holds."""
        counts = self.here.connection.store.counts()
        return counts.now, counts.paused, counts.ever


def fill(form: Locator) -> None:
    for box in form.locator("input[type=checkbox]:visible").all()[:2]:
        box.check()
    for field in form.locator("input:visible:not([type=checkbox]):not([type=radio]), textarea:visible").all():
        name = field.get_attribute("name") or ""
        if not field.input_value() and name in FILLED:
            field.fill(FILLED[name])


@pytest.fixture
def shop(own: Callable[..., Demonstration], demo: Demonstration, walked: Walk) -> Shop:
    return Shop(own(), demo, walked)


def number_in(text: str) -> str | None:
    """How many things a text names."""
    found = re.search(r"([\d,]+) (?:message|dead letter|job|task)s?\b", text)
    return found and found[1]


@each_action
def test_a_page_offers_it(name: str, walked: Walk) -> None:
    """There is a button for each action."""
    assert walked.forms.get(name), f"no page has a form of {name}"


@each_action
def test_it_does_what_the_preview_says(name: str, shop: Shop, scriptless_tab: Page) -> None:
    """Neither the preview nor leaving it changes anything. The confirmation changes as many things as the preview has
    said. Sending the form again changes nothing more. The audit log names the action. No step needs JavaScript."""
    page = scriptless_tab
    before = shop.state()
    shop.ask(page, name)
    page.get_by_role("link", name="Leave everything as it is").click()
    expect(page.get_by_role("button", name="Do it")).to_have_count(0)
    shop.ask(page, name)
    assert shop.state() == before
    promised = page.locator(".count").inner_text()
    page.get_by_role("button", name="Do it").click()
    done = page.get_by_role("status").inner_text()
    if number_in(promised) and number_in(done):
        assert number_in(promised) == number_in(done), f"{promised} / {done}"
    after = shop.state()
    page.reload()
    expect(page.get_by_role("status")).to_contain_text(done)
    expect(page.get_by_role("status")).to_contain_text("nothing was changed again")
    assert shop.state() == after
    page.get_by_role("link", name="Back").click()
    expect(page.locator("h1")).to_have_count(1)
    page.goto(f"{shop.here.url}/audit")
    row = page.locator("tbody tr").first
    expect(row).to_contain_text(name)
    expect(row).to_contain_text("ada")


@pytest.mark.parametrize("name", [name for name in ACTIONS if name not in REPEATABLE])
def test_it_is_refused_when_something_has_changed(
    name: str, shop: Shop, tab: Page, troubles: Troubles, scriptless_tab: Page
) -> None:
    """Two people see the same preview, and both confirm. The second confirmation changes nothing, and its page says
    what has changed since the preview. The pages are as accessible as all others, and fit a phone."""
    tab.set_viewport_size({"width": 360, "height": 740})
    shop.ask(tab, name)
    for theme in ("dark", "light"):
        tab.emulate_media(color_scheme=theme)
        assert inspect(tab, contrast=True, structure=True, targets=True) == []
    shop.ask(scriptless_tab, name)
    scriptless_tab.get_by_role("button", name="Do it").click()
    expect(scriptless_tab.get_by_role("status")).to_be_visible()
    before = shop.state()
    troubles.allow("status of 4|answered 4")
    with tab.expect_navigation() as answer:
        tab.get_by_role("button", name="Do it").click()
    assert answer.value is not None
    assert answer.value.status in (400, 404, 409)
    expect(tab.get_by_role("alert").first).to_be_visible()
    assert shop.state() == before
    assert inspect(tab, contrast=True, structure=True, targets=True) == []
