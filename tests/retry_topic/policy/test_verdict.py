"""Verdicts: what a handler may return."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from retry_topic.consumer.outcome import Ack, DeadLetter, Retry, verdict_of
from wheel_sched.errors import Rejected


def test_nothing_means_ack() -> None:
    """A handler that returns None acknowledges the message."""
    assert verdict_of(None) == Ack()


@pytest.mark.parametrize("verdict", [Ack(), Retry(), Retry(after=5, reason="busy"), DeadLetter("no such customer")])
def test_verdicts_are_taken_as_they_are(verdict: Any) -> None:
    """A verdict that a handler returns is not changed."""
    assert verdict_of(verdict) is verdict


@pytest.mark.parametrize("value", [True, False, 0, "retry", {}, object()])
def test_anything_else_is_a_clear_error(value: object) -> None:
    """Any return value but None and the verdicts is an error."""
    with pytest.raises(Rejected, match=r"expected a handler to return None, Ack\(\), Retry\(...\) or DeadLetter"):
        verdict_of(value)


def test_a_class_instead_of_its_value_gets_a_hint() -> None:
    """A verdict class without parentheses (`Retry` for `Retry()`) is refused with a hint."""
    with pytest.raises(Rejected, match=r"did you mean Ack\(...\)\?"):
        verdict_of(Ack)


def test_a_forgotten_await_gets_a_hint() -> None:
    """A coroutine that nobody awaited is refused with a hint. Python shows no warning about it."""

    async def handler() -> None: ...

    with pytest.raises(Rejected, match="async and was not awaited"):
        verdict_of(handler())


@pytest.mark.parametrize(
    ("after", "expected_ms"),
    [
        (None, None),
        (0, 0),
        (30, 30_000),
        (0.25, 250),
        (0.0001, 1),
        (0.001 * 3, 3),
        (timedelta(minutes=2), 120_000),
        (timedelta(microseconds=1), 1),
    ],
)
def test_waits_are_whole_milliseconds_rounded_up(after: Any, expected_ms: int | None) -> None:
    """Seconds and timedeltas become milliseconds, rounded up, without rounding errors of floats."""
    assert Retry(after=after).after_ms == expected_ms


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(seconds=-1), True, "5"])
def test_senseless_waits_are_refused(after: Any) -> None:
    """A negative, infinite or invalid wait raises an error in the handler."""
    with pytest.raises(Rejected, match="expected after to be seconds or a timedelta"):
        Retry(after=after)
