"""The glossary has each term once, in order, with a meaning and where the term is from."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def rows() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [row for row in found if row[0] != "term"]


def test_terms_stand_once_and_in_order() -> None:
    terms = [term.lower() for term, _, _ in rows()]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_a_meaning_is_one_or_two_short_sentences() -> None:
    """A meaning ends with a full stop and has at most 120 characters. A term that needs more text has a page."""
    assert [term for term, meaning, _ in rows() if not meaning.endswith(".") or len(meaning) > 120] == []
