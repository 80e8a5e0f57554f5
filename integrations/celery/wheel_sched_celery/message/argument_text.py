"""Arguments as text, as Celery writes them into the headers `argsrepr` and `kwargsrepr`, at a tenth of its cost.

Celery's `saferepr` makes a stream of tokens, so that it can stop in the middle of anything. For a few numbers and
short texts it says what `repr` says; those, which most tasks have, are told from others here.

Pure; any thread.
"""

from __future__ import annotations

from typing import Any, Final

_PLAIN: Final = frozenset((int, float, bool, type(None)))
_FEW: Final = 10
_SHORT: Final = 64  # characters of a text that is worth looking through


def plain_repr(value: Any, longest: int) -> str | None:
    """What `saferepr(value, longest)` says of plain arguments; None where it has to be asked."""
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
    """Whether it is a text that neither of the two escapes."""
    return type(part) is str and len(part) < _SHORT and part.isprintable() and not ("'" in part or "\\" in part)
