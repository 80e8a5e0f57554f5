"""The texts of arguments that Celery writes into the headers `argsrepr` and `kwargsrepr`, at a tenth of the cost.

Celery's `saferepr` makes a stream of tokens, so that it can stop in the middle of any value. For a few numbers and
short texts its result is that of `repr`. Most tasks have such arguments; this module recognizes them.

Pure; any thread.
"""

from __future__ import annotations

from typing import Any, Final

_PLAIN: Final = frozenset((int, float, bool, type(None)))
_FEW: Final = 10
_SHORT: Final = 64  # characters; a longer text is left to saferepr


def plain_repr(value: Any, longest: int) -> str | None:
    """The result of `saferepr(value, longest)` for plain arguments; None for all others."""
    kind = type(value)
    if kind is not tuple and kind is not dict and kind is not list:
        return None
    if len(value) > _FEW:
        return None
    for part in value:
        if type(part) not in _PLAIN and not _is_plain_text(part):
            return None
    if kind is dict:
        for part in value.values():
            if type(part) not in _PLAIN and not _is_plain_text(part):
                return None
    text = repr(value)
    return text if len(text) < longest else None


def _is_plain_text(part: Any) -> bool:
    """Whether it is a text in which neither `repr` nor `saferepr` escapes anything."""
    return type(part) is str and len(part) < _SHORT and part.isprintable() and not ("'" in part or "\\" in part)
