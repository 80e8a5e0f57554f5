"""Shows how the errors of one group differ: the text that all of them share, and the parts that vary.

Texts are compared by words and signs, so that an id or a number varies as a whole. The functions are pure. They compare
at most 20 texts, and 400 words of each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

MOST_TEXTS = 20
MOST_WORDS = 400
MOST_VALUES = 5

_WORD = re.compile(r"\w+|\s+|[^\w\s]")


class ErrorPart(NamedTuple):
    """A part of the text of several errors: words that are equal in all of them, or a part that varies.

    Args:
        text: the words that are equal in all errors; "" for a part that varies.
        values: the different texts of a part that varies, at most five. An error without a text there has "". Defaults
            to none: the part does not vary.
        more: how many other values the part has. Defaults to 0.
    """

    text: str
    values: tuple[str, ...] = ()
    more: int = 0


def error_parts(texts: Sequence[str]) -> list[ErrorPart]:
    """Split errors into parts that are equal in all of them and parts that vary.

    Args:
        texts: the errors. The first 20 are compared.
    """
    words = [_WORD.findall(text)[:MOST_WORDS] for text in dict.fromkeys(texts[:MOST_TEXTS])]
    if not words:
        return []
    common = words[0]
    for other in words[1:]:
        blocks = SequenceMatcher(None, common, other, autojunk=False).get_matching_blocks()
        common = [word for at, _, size in blocks for word in common[at : at + size]]
    gaps = [_gaps(common, one) for one in words]
    parts: list[ErrorPart] = []
    for place in range(len(common) + 1):
        values = list(dict.fromkeys(one[place] for one in gaps))
        if any(values):
            parts.append(ErrorPart("", tuple(values[:MOST_VALUES]), max(0, len(values) - MOST_VALUES)))
        if place < len(common):
            if parts and not parts[-1].values:
                parts[-1] = ErrorPart(parts[-1].text + common[place])
            else:
                parts.append(ErrorPart(common[place]))
    return parts


def _gaps(common: Sequence[str], words: Sequence[str]) -> list[str]:
    """The texts before, between and after the common words. The common words are a subsequence of the words."""
    gaps: list[str] = []
    gap: list[str] = []
    place = 0
    for word in words:
        if place < len(common) and word == common[place]:
            gaps.append("".join(gap))
            gap, place = [], place + 1
        else:
            gap.append(word)
    return [*gaps, "".join(gap)]
