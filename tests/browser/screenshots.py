"""The pictures of the dashboard in the docs: `python -m tests.browser.screenshots`, or `make screenshots`.

It serves the data of the demonstration on a server of its own, and writes docs/images/dashboard-NAME.png in the light
theme, dashboard-NAME-dark.png in the dark one, and dashboard-phone.png. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import randint
from uuid import uuid4

from playwright.sync_api import Browser, sync_playwright

from tests.browser.browsing import ARGUMENTS, CHROMIUM, MISSING
from tests.browser.demonstration import Demonstration, demonstration
from tests.servers.valkey import temporary_server
from wheel_sched.store import Item

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_BYTES = 150_000
WIDTH, HEIGHT = 1200, 800

# name of the picture -> path of the page, and the link on it to click first, as a CSS selector ("" for none)
SHOTS = {
    "overview": ("/", ""),
    "dead-letters": ("/dead-letters", ""),
    "item": ("/items?search=topic:orders", "main tbody a >> nth=0"),
    "policies": ("/policies", ""),
}


def take(
    browser: Browser, shop: Demonstration, name: str, folder: Path, *, traffic: int = 0, **settings: object
) -> Path:
    """Take one picture, of the first screen of the page.

    Args:
        browser: the browser that takes the picture.
        shop: the dashboard that is on the picture.
        name: the name of the picture, without "dashboard-".
        folder: the folder for the picture.
        traffic: for so many seconds the store gets new messages, before the picture is taken. Defaults to 0.
        settings: settings of the browser's context.

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
        for _ in range(traffic):  # so that rates and their curves show something
            shop.connection.store.schedule(
                [Item(uuid4().hex, 4_102_444_800_000, b"", "orders") for _ in range(randint(5, 40))]
            )
            page.wait_for_timeout(1_050)  # a page is updated once a second
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
                made.append(take(browser, shop, name, folder, traffic=12 * (name == "overview")))
                made.append(take(browser, shop, f"{name}-dark", folder, color_scheme="dark"))
        phone = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True}
        made.append(take(browser, shop, "phone", folder, **phone))
        browser.close()
    for file in made:
        print(f"{file} {file.stat().st_size:,} bytes")  # noqa: T201  # the program's output
    return 0


if __name__ == "__main__":
    sys.exit(main())
