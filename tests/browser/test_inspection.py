"""`inspection.js` finds each kind of mistake in a page. In a page without mistakes it finds nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.browsing import inspect

_SOUND = (
    '<html lang="en"><title>T</title><body><header>h</header><main><h1>One</h1>{}</main>'
    "<footer>f</footer></body></html>"
)


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        ("", None),
        ('<p style="color:#777;background:#fff">pale</p>', "contrast 4.48 < 4.5"),
        ('<p style="color:#767676;background:#fff">enough</p>', None),
        ('<p style="font-size:24px;color:#949494">large</p>', None),
        ('<p style="font-size:24px;color:#999">large</p>', "contrast 2.85 < 3"),
        ('<div style="background:#000"><p style="color:#000">black on black</p></div>', "contrast 1.00"),
        ('<div style="opacity:.4"><p>faded</p></div>', "contrast"),
        ('<svg><text x="9" y="20" fill="#ccc">pale</text></svg>', "contrast 1.61"),
        ('<input aria-label="a" value="v" style="color:#bbb">', "value of <input>"),
        ('<input aria-label="a" style="border:1px solid #eee">', "edge of <input>"),
    ],
)
def test_contrast_is_computed(html: str, finding: str | None, unguarded_tab: Page) -> None:
    """The contrast of texts in HTML, in SVG and in fields is computed from the colours behind them."""
    unguarded_tab.set_content(_SOUND.format(html))
    found = inspect(unguarded_tab, contrast=True)
    assert (found == []) if finding is None else any(finding in one for one in found)


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        ("", None),
        ("<h1>Two</h1>", "2 h1"),
        ("<h3>deep</h3>", "h1 is followed by <h3>"),
        ('<label>a <input name="a"></label>', None),
        ('<input name="a">', "no label: <input>"),
        ('<button><svg aria-hidden="true"></svg></button>', "no name: <button>"),
        ("<svg></svg>", "no name: <svg>"),
        ('<img src="data:,">', "no alt"),
        ('<p id="a">a</p><p id="a">a</p>', "the id a twice"),
        ('<label for="b">b</label>', 'for="b"'),
        ('<div class="scroll"><table><tr><th>a</th></tr></table></div>', "no scope"),
        ('<table><tr><th scope="col">a</th></tr></table>', "a table outside .scroll"),
        (
            '<div class="scroll"><table><tr><th scope="col">a</th></tr><tr><td>1</td><td>2</td></tr></table></div>',
            "rows of 1 and 2 cells",
        ),
        ("<p><form></form></p>", "an empty <p>"),
        ('<p tabindex="3">a</p>', "tabindex 3"),
        ('<p style="top:0">a</p>', "attribute style"),
        ('<p onclick="1">a</p>', "attribute onclick"),
        ('<form method="post" action="/x"></form>', "a form without a token"),
        ("<nav>a</nav>", "a nav without a label"),
    ],
)
def test_structure_is_checked(html: str, finding: str | None, unguarded_tab: Page) -> None:
    """Names, headings, tables, ids and attributes are checked."""
    unguarded_tab.set_content(_SOUND.format(html))
    found = inspect(unguarded_tab, structure=True)
    assert (found == []) if finding is None else any(finding in one for one in found)


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        ('<p>A text with <a href="/">a link</a> in it.</p>', None),
        ('<a href="/">alone</a>', "a target of"),
        ('<button style="width:20px;height:30px">x</button>', "a target of 20 x 30"),
        ('<div style="width:2000px">wide</div>', "px wide on a screen"),
        ('<div style="overflow-x:auto"><div style="width:2000px">wide</div></div>', None),
    ],
)
def test_sizes_are_measured(html: str, finding: str | None, unguarded_tab: Page) -> None:
    """Small targets and pages that are too wide are found."""
    unguarded_tab.set_content(_SOUND.format(html))
    found = inspect(unguarded_tab, targets=True)
    assert (found == []) if finding is None else any(finding in one for one in found)
