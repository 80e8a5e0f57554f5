"""The policy simulator of the documentation: a reader drags its controls and sees when the messages come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.browsing import inspect

PAGE = Path(__file__).resolve().parents[2] / "docs" / "site" / "herd.html"


def heights(page: Page) -> list[float]:
    """The heights of the chart's 60 bars: how many messages arrive in each sixtieth of the shown time."""
    found: list[float] = page.eval_on_selector_all("#chart .bar", "bars => bars.map(bar => bar.height.baseVal.value)")
    return found


def drag(page: Page, name: str, share: float) -> None:
    """Press the mouse in the middle of a control, move it to `share` of the width, and release it."""
    box = page.locator(f"#{name}").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * share, middle, steps=5)
    page.mouse.up()


@pytest.mark.parametrize("name", ["base", "factor", "cap", "attempts", "failing", "herd"])
def test_dragging_a_control_changes_the_picture(name: str, new_page: Callable[..., Page]) -> None:
    """The value beside the control, the bars or their scale, and the sentence below the picture follow the mouse."""
    page = new_page()
    page.goto(PAGE.as_uri())
    before = (page.locator(f"output[name={name}-shown]").inner_text(), page.locator("#chart").inner_html())
    said = page.locator("#said").inner_text()
    drag(page, name, 0.1)
    after = (page.locator(f"output[name={name}-shown]").inner_text(), page.locator("#chart").inner_html())
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert page.locator("#said").inner_text() != said


def test_without_jitter_the_herd_comes_back_together(new_page: Callable[..., Page]) -> None:
    """Without jitter a few bars hold all arrivals. With full jitter most bars have some.

    The page loads only one script, which is beside it.
    """
    page = new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(PAGE.as_uri())
    spread = heights(page)
    page.select_option("#jitter", "none")
    together = heights(page)
    assert len(spread) == len(together) == 60
    assert sum(height > 0 for height in together) < 10 < sum(height > 0 for height in spread)
    assert asked == [PAGE.as_uri(), PAGE.with_name("herd.js").as_uri()]


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_simulator_can_be_read(system: str, new_page: Callable[..., Page]) -> None:
    """axe finds no fault, and texts have enough contrast, on light and on dark."""
    page = new_page(color_scheme=system)
    page.goto(PAGE.as_uri())
    faults = inspect(page, contrast=True)
    assert [one for one in faults if "<input#" not in one] == []  # the colours of a slider are the browser's own
