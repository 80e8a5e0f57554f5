"""Fixtures: Chromium, a served dashboard with the data of the demonstration, and pages that note their troubles."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.browsing import ARGUMENTS, CHROMIUM, MISSING, Troubles
from tests.browser.demonstration import Demonstration, demonstration
from tests.browser.walking import Walk, walk
from tests.servers.valkey import TemporaryServer

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for the session. Each test has its own context: its own cookies and storage."""
    if not Path(CHROMIUM).exists():
        pytest.fail(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo(real_server: TemporaryServer) -> Iterator[Demonstration]:
    """A dashboard that tests only read."""
    with demonstration(real_server.url, 1) as opened:
        yield opened


@pytest.fixture
def own(real_server: TemporaryServer) -> Iterator[Callable[..., Demonstration]]:
    """Return a function that makes a dashboard with data of its own, which a test may change."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Demonstration:
            made = demonstration(real_server.url, 2 + next(_numbers) % 14, **settings)
            return stack.enter_context(made)

        yield make


@pytest.fixture(scope="session")
def walked(demo: Demonstration) -> Walk:
    """The addresses of all pages of `demo`."""
    return walk(demo.url, demo.pages)


@pytest.fixture(scope="session")
def _tabs(chromium: Browser) -> Iterator[Callable[[bool], tuple[Page, Troubles]]]:
    """Return a function that returns a page, with or without JavaScript. All tests share the two pages."""
    with contextlib.ExitStack() as stack:

        @cache
        def tab(scripts: bool) -> tuple[Page, Troubles]:
            context = stack.enter_context(chromium.new_context(java_script_enabled=scripts))
            return context.new_page(), Troubles(context)

        yield tab


@pytest.fixture
def troubles(_tabs: Callable[[bool], tuple[Page, Troubles]]) -> Iterator[Troubles]:
    """The troubles of `tab`. The test fails if there is a trouble that it has not allowed."""
    _, noted = _tabs(True)
    noted.start()
    yield noted
    assert noted.found == []


@pytest.fixture
def tab(_tabs: Callable[[bool], tuple[Page, Troubles]], troubles: Troubles) -> Page:
    """A page with the size of a laptop. Tests share it, because a new page takes half a second."""
    page, _ = _tabs(True)
    page.set_viewport_size({"width": 1200, "height": 900})
    return page


@pytest.fixture
def scriptless_tab(_tabs: Callable[[bool], tuple[Page, Troubles]]) -> Page:
    """As `tab`, without JavaScript."""
    return _tabs(False)[0]


@pytest.fixture(scope="session")
def unguarded_tab(chromium: Browser) -> Iterator[Page]:
    """A page without the dashboard's content security policy, for tools that add styles and scripts."""
    with chromium.new_context(bypass_csp=True) as context:
        yield context.new_page()


Opened = tuple[BrowserContext, Troubles]


@pytest.fixture
def contexts(chromium: Browser) -> Iterator[Callable[..., Opened]]:
    """Return a function that makes a browser context. At the end the test fails if a context had troubles."""
    made: list[Opened] = []

    def make(**settings: Any) -> Opened:
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_default_timeout(20_000)
        made.append((context, Troubles(context)))
        return made[-1]

    yield make
    for context, _ in made:
        context.close()
    assert [one for _, troubles in made for one in troubles.found] == []


@pytest.fixture
def new_page(contexts: Callable[..., Opened]) -> Callable[..., Page]:
    """Return a function that opens a page in a new context."""
    return lambda **settings: contexts(**settings)[0].new_page()
