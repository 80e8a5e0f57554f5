"""Compares the errors of two attempts word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Literal, NamedTuple

from retry_topic.message.headers.failed_attempts import FailedAttempt

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_COMPARED = 400  # characters of each error


class DiffPiece(NamedTuple):
    """Words that both errors have ("same"), only the earlier one ("del"), or only the later one ("ins")."""

    kind: Literal["same", "del", "ins"]
    text: str


class ErrorChange(NamedTuple):
    """The numbers of two successive attempts, and how their errors differ. `pieces` is empty if they are equal."""

    before: int
    after: int
    pieces: Sequence[DiffPiece]


def error_changes(attempts: Sequence[FailedAttempt]) -> list[ErrorChange]:
    """How the error changed from each attempt to the next."""
    return [
        ErrorChange(one.number, other.number, diff_pieces(_text(one), _text(other)))
        for one, other in pairwise(attempts)
    ]


def diff_pieces(before: str, after: str) -> list[DiffPiece]:
    """The pieces in which two texts agree or differ; empty for equal texts. Compares the first 400 characters."""
    if before == after:
        return []
    old, new = _WORD.findall(before[:_COMPARED]), _WORD.findall(after[:_COMPARED])
    pieces = []
    for kind, old_at, old_end, new_at, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(DiffPiece("same", "".join(old[old_at:old_end])))
            continue
        if old_end > old_at:
            pieces.append(DiffPiece("del", "".join(old[old_at:old_end])))
        if new_end > new_at:
            pieces.append(DiffPiece("ins", "".join(new[new_at:new_end])))
    return pieces


def _text(attempt: FailedAttempt) -> str:
    return ": ".join(filter(None, (attempt.error_class, attempt.text))) or "no error"
