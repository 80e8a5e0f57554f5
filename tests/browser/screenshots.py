"""The pictures of the dashboard in the docs: `python -m tests.browser.screenshots`, or `make screenshots`.

It serves the data of the demonstration on a server of its own, and writes docs/images/dashboard-NAME.png in the light
theme, dashboard-NAME-dark.png in the dark one, and dashboard-phone.png. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.browsing import ARGUMENTS, CHROMIUM, MISSING
from tests.browser.demonstration import Demonstration, demonstration
from tests.servers.valkey import temporary_server

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_BYTES = 150_000
WIDTH, HEIGHT = 1200, 900

# name of the picture -> path of the page, and the link on it to click first, as a CSS selector ("" for none)
SHOTS = {
    "overview": ("/", ""),
    "dead-letters": ("/dead-letters", ""),
    "item": ("/items?search=topic:orders", "main tbody a >> nth=0"),
    "policies": ("/policies", ""),
}


def take(browser: Browser, shop: Demonstration, name: str, folder: Path, **settings: object) -> Path:
    """Take one picture, of the first screen of the page.

    Raises:
        SystemExit: the picture is larger than 150 kB.
    """
    path, link = SHOTS[name.removesuffix("-dark").replace("phone", "overview")]
    file = folder / f"dashboard-{name}.png"
    given = {"viewport": {"width": WIDTH, "height": HEIGHT}, "reduced_motion": "reduce", **settings}
    with browser.new_context(**given) as context:
        page = context.new_page()
        page.goto(shop.url + path)
        if link:
            page.locator(link).click()
        page.locator("h1").wait_for()
        page.screenshot(path=file)
    if file.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{file} has {file.stat().st_size:,} bytes, the limit is {MAX_BYTES:,}")
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where the pictures go (default: docs/images)")
    folder: Path = parser.parse_args(arguments).folder
    if not Path(CHROMIUM).exists():
        raise SystemExit(f"error: {MISSING}")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        temporary_server() as server,
        demonstration(server.url, 0, hostile=False) as shop,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        known = {page.path for page in shop.pages}
        made = []
        for name, (path, _) in SHOTS.items():
            if path.partition("?")[0] in known:
                made.append(take(browser, shop, name, folder))
                made.append(take(browser, shop, f"{name}-dark", folder, color_scheme="dark"))
        phone = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True}
        made.append(take(browser, shop, "phone", folder, **phone))
        browser.close()
    for file in made:
        print(f"{file} {file.stat().st_size:,} bytes")  # noqa: T201  # the program's output
    return 0


if __name__ == "__main__":
    sys.exit(main())
