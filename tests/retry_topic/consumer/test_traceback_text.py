"""The traceback that is kept with a failed message: bounded, without values and passwords, for any exception."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retry_topic.consumer.outcome import verdict_of
from retry_topic.consumer.traceback_text import traceback_text


def of(fails: Callable[[], Any]) -> str:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # any exception
        fails()
    text = traceback_text(caught.value)
    assert text is not None
    assert len(text.encode()) <= 4_096
    return text


def charge(amount: int) -> None:
    secret = f"hunter{amount}"
    raise ValueError("no such account") from ConnectionError(f"{len(secret)} bytes to redis://u:hunter2@bank/0")


def deep(levels: int) -> None:
    if levels == 0:
        raise ValueError("bottom")
    deep(levels - 1)


def test_it_has_the_lines_of_code_and_no_values() -> None:
    """Each call has file, line, function and source line. The cause has one line. No value of a variable is shown."""
    text = of(lambda: charge(2))
    lines = text.split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-4].startswith(f'  File "{__file__}", line ')
    assert lines[-4].endswith(", in charge")
    assert lines[-3].startswith("    raise ValueError(")
    assert lines[-2] == "ValueError: no such account"
    assert lines[-1] == "Caused by: ConnectionError: 7 bytes to redis://u:***@bank/0"
    assert "hunter2" not in text


def test_deep_recursion_shows_the_innermost_calls() -> None:
    """A traceback of 203 calls shows the innermost twenty and counts the others."""
    lines = of(lambda: deep(200)).split("\n")
    assert sum(line.startswith("  File") for line in lines) == 20
    assert lines[1] == "  [183 outer calls left out]"
    assert lines[-2].strip() == 'raise ValueError("bottom")'


def test_long_texts_leave_room_for_calls() -> None:
    """An exception's text of a million characters is cut, and outer calls are left out until the traceback fits."""

    def fails() -> None:
        try:
            deep(40)
        except ValueError as error:
            raise ValueError("é" * 1_000_000) from error

    text = of(fails)
    assert text.startswith("Traceback (most recent call last")
    assert "in test_long_texts_leave_room_for_calls.<locals>.fails" in text


def test_frames_of_this_package_and_of_threads_are_left_out() -> None:
    """A function fails on a pool of threads: no frame of the pool is shown.

    If all frames are of this package, they are shown.
    """
    with ThreadPoolExecutor(1) as pool:
        text = of(lambda: pool.submit(charge, 1).result())
    assert "concurrent" not in text
    assert "threading" not in text
    assert "in charge" in text
    with pytest.raises(Exception, match="expected a handler") as caught:
        verdict_of(True)
    caught.value.__traceback__ = caught.tb.tb_next  # as the consumer would see it: without the frame of this test
    assert "in verdict_of" in (traceback_text(caught.value) or "")


def test_causes_are_short_and_bounded() -> None:
    """A chain of exceptions has one line for each of the five nearest causes. A circle of causes ends."""

    def chain(levels: int) -> None:
        try:
            if levels:
                chain(levels - 1)
        finally:
            raise KeyError(levels)

    text = of(lambda: chain(30))
    assert text.count("While handling: KeyError") == 5

    def circle() -> None:
        first, second = KeyError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    assert of(circle).count("Caused by:") == 1


def test_a_group_shows_its_first_members() -> None:
    """An exception group has one line for each of its first five members."""

    def fails() -> None:
        raise ExceptionGroup("several", [ValueError(number) for number in range(9)])

    assert of(fails).count("One of 9: ValueError:") == 5


def test_a_hostile_exception_stops_nothing() -> None:
    """`traceback_text` returns a text or None even for an exception whose attributes raise when they are read."""

    class Broken(Exception):
        __cause__ = __context__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
        __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __str__(self) -> str:
            raise SystemExit

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise KeyboardInterrupt

    class Worse(Exception, metaclass=Meta):
        pass

    def fails() -> None:
        raise Broken

    assert of(fails).endswith("Broken: (message unavailable)")
    assert traceback_text(Worse()) is None


def test_a_password_in_a_long_line_of_code_is_hidden() -> None:
    """Passwords in a source line are hidden before the line is cut, so no part of a password is shown."""
    line = f'raise ValueError("redis://u:{"s" * 300}@bank/0")'
    linecache.cache["long.py"] = (len(line), None, [line], "long.py")
    code = compile(line, "long.py", "exec")
    text = of(lambda: exec(code, {}))  # noqa: S102
    assert "long.py" in text
    assert "redis://u:***@bank/0" in text
    assert "sss" not in text
