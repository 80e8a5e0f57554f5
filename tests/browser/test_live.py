"""Open pages follow what happens: numbers change without a reload, and a page outlives the restart of its servers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.browsing import Troubles
from tests.browser.demonstration import Demonstration, demonstration
from tests.servers.valkey import free_port, temporary_server
from wheel_sched.store import Item

Opened = tuple[BrowserContext, Troubles]

PATIENCE_MS = 20_000
HOUR_MS = 3_600_000


def figure(page: Page, label: str) -> int:
    """The number under a label of the overview."""
    return int(page.locator(f"dl.figures div:has(dt:text-is('{label}')) dd").inner_text().replace(",", ""))


def expect_figure(page: Page, label: str, value: int) -> None:
    figures = page.locator(f"dl.figures div:has(dt:text-is('{label}')) dd")
    expect(figures).to_have_text(f"{value:,}", timeout=PATIENCE_MS)


def test_a_new_item_is_counted_on_an_open_page(
    own: Callable[..., Demonstration], new_page: Callable[..., Page]
) -> None:
    """The number of waiting items rises on the open page, without a reload."""
    shop, page = own(), new_page()
    page.goto(f"{shop.url}/")
    page.evaluate("window.same = true")
    waiting = figure(page, "waiting")
    store = shop.connection.store
    store.schedule([Item(f"more{n}", store.now_ms() + HOUR_MS, b"x", "orders") for n in range(3)])
    expect_figure(page, "waiting", waiting + 3)
    assert page.evaluate("window.same")


def test_the_focus_and_the_scrolling_stay(own: Callable[..., Demonstration], new_page: Callable[..., Page]) -> None:
    """An update does not move the focus, does not scroll a table, and does not fold what is unfolded."""
    shop, page = own(), new_page(viewport={"width": 360, "height": 740})
    page.goto(f"{shop.url}/")
    page.evaluate(
        """() => {
          const add = () => {
            const live = document.getElementById("live");
            const more = "<p><a href='#one'>one</a> <a href='#two'>two</a></p><details><summary>s</summary></details>";
            live.insertAdjacentHTML("beforeend", more);
          };
          add();
          document.addEventListener("htmx:sseMessage", add, {capture: true});
          document.querySelector("a[href='#two']").focus();
          document.querySelector("details").open = true;
          [...document.querySelectorAll(".scroll")].at(-1).scrollLeft = 40;
        }"""
    )
    waiting = figure(page, "waiting")
    store = shop.connection.store
    store.schedule([Item("more", store.now_ms() + HOUR_MS, b"x", "orders")])
    expect_figure(page, "waiting", waiting + 1)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#two"
    assert page.evaluate("document.querySelector('details').open")
    assert page.evaluate("[...document.querySelectorAll('.scroll')].at(-1).scrollLeft") == 40


def test_the_store_goes_and_comes_back(contexts: Callable[..., Opened]) -> None:
    """While the store is down, the open page says so; when it is up again, the page shows its numbers again."""
    with temporary_server() as server, demonstration(server.url, 0) as shop:
        context, _ = contexts()
        page = context.new_page()
        page.goto(f"{shop.url}/")
        waiting = figure(page, "waiting")
        server.stop()
        expect(page.get_by_role("alert")).to_be_visible(timeout=PATIENCE_MS)
        server.restart()
        expect_figure(page, "waiting", waiting)
        context.close()


def test_the_dashboard_goes_and_comes_back(real_server: object, contexts: Callable[..., Opened]) -> None:
    """When the dashboard is restarted, an open page connects again and follows the new process."""
    port = free_port()
    context, troubles = contexts()
    troubles.allow("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|htmx:sseError|ERR_CONNECTION_RESET")
    page = context.new_page()
    url = real_server.url  # type: ignore[attr-defined]
    with demonstration(url, 2, port=port) as shop:
        page.goto(f"{shop.url}/")
        waiting = figure(page, "waiting")
    with demonstration(url, 3, port=port) as shop:
        shop.connection.store.schedule([Item("more", 9_999_999_999_999, b"x", "orders")])
        expect_figure(page, "waiting", waiting + 1)
        context.close()


@pytest.mark.parametrize("path", ["/", "/members"])
def test_a_hidden_page_asks_for_nothing(path: str, demo: Demonstration, new_page: Callable[..., Page]) -> None:
    """A page that nobody sees closes its stream, because a browser keeps at most six connections to one server. It
    opens the stream again when it is seen."""
    page = new_page()
    with page.expect_request(re.compile("/live")) as asked:
        page.goto(demo.url + path)
    with page.expect_event("requestfailed", lambda request: request == asked.value):  # the page closes its stream
        see(page, "hidden")
    with page.expect_request(re.compile("/live")):
        see(page, "visible")


def see(page: Page, state: str) -> None:
    """Tell the page that it is seen, or hidden behind another one."""
    page.evaluate(
        """(state) => {
          Object.defineProperty(document, "visibilityState", {configurable: true, value: state});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def test_selected_text_stays_selected(own: Callable[..., Demonstration], new_page: Callable[..., Page]) -> None:
    """While text is selected, no update replaces it. Afterwards the page shows what has changed meanwhile."""
    shop, page = own(), new_page()
    page.goto(f"{shop.url}/")
    waiting = figure(page, "waiting")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#live h2'))")
    store = shop.connection.store
    with page.expect_event("console", lambda message: message.text == "left out"):
        page.evaluate(
            """document.addEventListener("htmx:sseBeforeMessage", (event) => {
              if (event.defaultPrevented) console.log("left out");
            })"""
        )
        store.schedule([Item("more", store.now_ms() + HOUR_MS, b"x", "orders")])
    assert page.evaluate("getSelection().toString()")
    assert figure(page, "waiting") == waiting
    page.evaluate("getSelection().removeAllRanges()")
    expect_figure(page, "waiting", waiting + 1)
