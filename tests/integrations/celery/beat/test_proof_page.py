"""The page that says what is proved about periodic tasks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3]
PAGE = TESTS.parent / "docs" / "internals" / "celery-beat-proof.md"
FOLDERS = {"beat": TESTS / "integrations/celery/beat", "durable": TESTS / "integrations/celery/durable"}


def test_every_test_of_the_page_exists() -> None:
    """Each test file that the page names exists, and so does each function."""
    named = re.findall(r"`(\w+)/(test_\w+\.py)(?:::(test_\w+))?`", PAGE.read_text("utf-8"))
    assert len(named) >= 14
    for folder, file, name in named:
        text = (FOLDERS.get(folder, TESTS / folder) / file).read_text("utf-8")
        assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE), (file, name)
