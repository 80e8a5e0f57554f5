"""Everything can be done with the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.demonstration import PARTS, Demonstration
from tests.browser.walking import Walk

LISTED = [(page.label, page.path) for part in PARTS for page in part.pages if page.label]

# marks each element that can get the focus, and returns the marks
_MARKED = """() => {
  const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")];
  const there = all.filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.disabled);
  const names = new Set();
  there.forEach((one, at) => (one.dataset.mark = one.type === "radio" ? `radio ${one.name}` : `${at}`));
  return [...new Set(there.map((one) => one.dataset.mark))];
}"""
# of the element with the focus: its mark, whether it is on the screen, and whether it shows the focus
_FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  return {
    mark: one.dataset.mark ?? null,
    what: one.outerHTML.slice(0, 90),
    shown: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inside: box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}"""


@pytest.mark.parametrize("path", [page.path for part in PARTS for page in part.pages])
def test_tab_reaches_everything(path: str, walked: Walk, tab: Page) -> None:
    """Tab goes to every link, button and field of the page, and each shows that it has the focus."""
    quiet = "retry: 60000\n\n"
    tab.route("**/live**", lambda route: route.fulfill(content_type="text/event-stream", body=quiet))
    try:
        tab.goto(walked.addresses[path][0])
        waiting = set(tab.evaluate(_MARKED))
        tab.evaluate("document.activeElement.blur()")
        for _ in range(len(waiting) + 40):
            tab.keyboard.press("Tab")
            focused = tab.evaluate(_FOCUSED)
            if focused is None or (not waiting and focused["mark"]):
                break
            assert focused["shown"], focused
            assert focused["inside"], focused
            waiting.discard(focused["mark"])
        assert waiting == set()
    finally:
        tab.unroute("**/live**")


def test_the_first_tab_skips_the_navigation(demo: Demonstration, tab: Page) -> None:
    """The first Tab shows a link to the content; Enter and another Tab go on behind the navigation."""
    tab.goto(f"{demo.url}/")
    tab.keyboard.press("Tab")
    skip = tab.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    tab.keyboard.press("Enter")
    expect(tab.locator("main")).to_be_focused()
    tab.keyboard.press("Tab")
    assert tab.evaluate("!document.activeElement.closest('header')")


def test_keys_open_pages(demo: Demonstration, tab: Page) -> None:
    """ "g" and a letter open each page of the navigation. The list of keys shows the letters. Each page has its own."""
    tab.goto(f"{demo.url}/")
    tab.keyboard.press("?")
    lines = tab.get_by_role("dialog").locator("li").all_inner_texts()
    keys = dict(line.removeprefix("g ").split(" ", 1) for line in lines if line.startswith("g "))
    assert sorted(keys.values()) == sorted(label for label, _ in LISTED)
    tab.keyboard.press("Escape")
    for letter, label in keys.items():
        tab.keyboard.press("g")
        tab.keyboard.press(letter)
        expect(tab.locator("header nav [aria-current=page]")).to_have_text(label)


def test_the_list_of_keys_opens_and_closes(demo: Demonstration, tab: Page) -> None:
    """ "?" opens one list of keys, and the focus stays in the list. Escape closes the list and gives the focus back."""
    tab.goto(f"{demo.url}/members")
    link = tab.get_by_role("navigation").get_by_role("link").nth(1)
    link.focus()
    tab.keyboard.press("?")
    dialog = tab.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()
    assert tab.evaluate("!!document.activeElement.closest('dialog')")
    tab.keyboard.press("?")
    expect(dialog).to_have_count(1)
    tab.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(link).to_be_focused()
    tab.keyboard.press("?")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def test_keys_are_letters_in_a_field(walked: Walk, tab: Page) -> None:
    """ "/" goes to the search of a page that has one; there, keys write, and Escape leaves the field."""
    for addresses in walked.addresses.values():
        tab.goto(addresses[0])
        search = tab.locator("input[type=search]")
        if search.count() == 0:
            tab.keyboard.press("/")  # nothing happens
            continue
        search.first.fill("")
        tab.evaluate("document.activeElement.blur()")
        tab.keyboard.press("/")
        expect(search.first).to_be_focused()
        tab.keyboard.type("g/?")
        expect(search.first).to_have_value("g/?")
        expect(tab.get_by_role("dialog")).to_have_count(0)
        tab.keyboard.press("Escape")
        expect(search.first).not_to_be_focused()
