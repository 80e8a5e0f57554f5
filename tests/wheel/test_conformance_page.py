"""The page that lists test cases of other projects names tests that exist here."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "internals" / "timers-conformance.md"


def test_every_case_of_the_page_has_a_test() -> None:
    """Each row of the page names at least one test, and each named test exists."""
    rows = [
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and "what it holds" not in line
    ]
    assert len(rows) >= 70
    missing = []
    for row in rows:
        named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", row)
        if not named:
            missing.append(row)
        for file, name in named:
            if not re.search(rf"^def {name}\(", (TESTS / file).read_text("utf-8"), re.MULTILINE):
                missing.append(f"{file}::{name}")
    assert missing == []
