"""The texts of arguments in message headers are those that Celery writes."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st
from wheel_sched_celery.message.headers import plain_repr

_parts = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80)
_arguments = st.lists(_parts, max_size=12).flatmap(
    lambda parts: st.sampled_from([parts, tuple(parts), dict(zip(parts, parts[::-1], strict=True))])
)


@given(_arguments, st.sampled_from([10, 40, 1024]))
def test_it_says_what_celery_says_or_nothing(arguments: Any, longest: int) -> None:
    """`plain_repr` returns Celery's text or None, for any arguments and any limit of length."""
    assert plain_repr(arguments, longest) in (None, saferepr(arguments, longest))


@pytest.mark.parametrize(
    "arguments", [(), (1,), (1, 2.5, None, True), [1, "a b@c/d"], {}, {"user": "grüße", "n": -1}, {1: "x"}], ids=repr
)
def test_it_knows_what_most_tasks_have(arguments: Any) -> None:
    """`plain_repr` writes numbers and short texts, as positional and as keyword arguments."""
    assert plain_repr(arguments, 1024) == saferepr(arguments, 1024)


class Number(int):
    """An int subclass with its own repr."""

    def __repr__(self) -> str:
        return "hidden"


@pytest.mark.parametrize(
    "arguments",
    [(Number(1),), ([1],), ("it's",), ("back\\slash",), ("line\n",), ("x" * 200,), (b"raw",), "text"],
    ids=ascii,
)
def test_it_leaves_the_rest_to_celery(arguments: Any) -> None:
    """`plain_repr` returns None for arguments whose text could differ from Celery's."""
    assert plain_repr(arguments, 1024) is None
