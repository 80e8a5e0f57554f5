"""Debian's Chromium, driven by Playwright: how it is started, and what is noted while a page is open."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
MISSING = "the browser layer needs Chromium: apt-get install chromium; nothing was run"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
INSPECTION = (Path(__file__).parent / "inspection.js").read_text("utf-8")

# what breaks the page's content security policy becomes an error on the console
_REPORT_VIOLATIONS = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"""


class Troubles:
    """Notes what goes wrong in the pages of a context: errors on the console, scripts that raise, failed requests."""

    def __init__(self, context: BrowserContext) -> None:
        self.found: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        context.add_init_script(_REPORT_VIOLATIONS)
        context.on("console", lambda message: self._note(f"console {message.type}: {message.text}", message.type))
        context.on("weberror", lambda error: self._note(f"script: {error.error}"))
        context.on("response", lambda answer: self._note_status(answer.url, answer.status))
        context.on("dialog", self._note_dialog)

    def allow(self, pattern: str) -> None:
        """Expect troubles whose text contains this regular expression, before they happen."""
        self._allowed.append(re.compile(pattern))

    def start(self) -> None:
        """Forget what was found and allowed."""
        self.found.clear()
        self._allowed.clear()

    def _note(self, text: str, level: str = "error") -> None:
        if level in ("error", "warning") and not any(one.search(text) for one in self._allowed):
            self.found.append(text)

    def _note_status(self, url: str, status: int) -> None:
        if status >= 400:
            self._note(f"{url} answered {status}")

    def _note_dialog(self, dialog: Any) -> None:
        self._note(f"a dialog: {dialog.message}")  # only a script in a hostile text opens a dialog
        dialog.dismiss()


def inspect(page: Page, **options: bool) -> list[str]:
    """What `inspection.js` finds on the page. Options: `contrast`, `structure`, `targets`."""
    found: list[str] = page.evaluate(INSPECTION, options)
    return found
