"""Which arguments a wheel refuses, and with which error."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.wheel import TimingWheel

Core = type[TimingWheel[Any]]

NOT_INTS = [1.0, 1.5, float("nan"), float("inf"), True, "5", None, b"5", [1]]


class Moment(IntEnum):
    """A subclass of int."""

    NOON = 720


@pytest.mark.parametrize("wheel_size", [0, 1, 3, 20, 1000, -2, 2.0, True, "64", None])
def test_the_wheel_size_must_be_a_power_of_two(core: Core, wheel_size: Any) -> None:
    """A wheel size must be a power of two, as in Agrona. So Kafka's default of 20 is refused."""
    with pytest.raises(ConfigError, match="expected wheel_size to be a power of two of at least 2, got: "):
        core(wheel_size=wheel_size)


@pytest.mark.parametrize("tick_ms", [0, -1, 1.0, True, float("nan"), "1", None])
def test_the_tick_must_be_a_positive_int(core: Core, tick_ms: Any) -> None:
    """A tick that is no int of at least 1 ms is refused, also a float and a bool."""
    with pytest.raises(ConfigError, match="expected tick_ms to be an int of at least 1"):
        core(tick_ms=tick_ms)


@pytest.mark.parametrize("now_ms", [-1, 0.0, True, "0", None])
def test_the_start_must_be_an_int_from_zero(core: Core, now_ms: Any) -> None:
    """The start time must be an int of at least 0, as monotonic clocks may start at 0."""
    with pytest.raises(ConfigError, match="expected now_ms to be an int of at least 0"):
        core(now_ms)


def test_all_configuration_problems_are_told_at_once(core: Core) -> None:
    """One error lists all problems, so that the user can fix them in one run."""
    with pytest.raises(ConfigError) as caught:
        core(-1, tick_ms=0, wheel_size=3)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("deadline_ms", NOT_INTS, ids=repr)
def test_a_deadline_must_be_an_int(core: Core, deadline_ms: Any) -> None:
    """Every method refuses a deadline that is no int, and changes nothing."""
    wheel = core()
    entry = wheel.schedule("task", 100)
    for attempt in (lambda: wheel.schedule("x", deadline_ms), lambda: wheel.restore([(1, "x"), (deadline_ms, "y")])):
        with pytest.raises(Rejected, match="expected deadline_ms to be an int"):
            attempt()
    for change in (entry.reschedule, entry.touch):
        with pytest.raises(Rejected, match="expected deadline_ms to be an int"):
            change(deadline_ms)
    assert wheel.snapshot() == [(100, "task")]


@pytest.mark.parametrize("now_ms", NOT_INTS, ids=repr)
def test_now_must_be_an_int(core: Core, now_ms: Any) -> None:
    """`advance` refuses a time that is no int. It does not round a float."""
    wheel = core()
    wheel.schedule("task", 0)
    with pytest.raises(Rejected, match="expected now_ms to be an int"):
        wheel.advance(now_ms)
    assert len(wheel) == 1


@pytest.mark.parametrize("limit", [0, -1, 1.0, True, "1"])
def test_a_limit_must_be_positive(core: Core, limit: Any) -> None:
    """`advance` refuses a limit below 1. With a limit of 0 its answer would look as if no entry were due."""
    wheel = core()
    wheel.schedule("task", 0)
    with pytest.raises(Rejected, match="expected limit to be None or an int of at least 1"):
        wheel.advance(0, limit)
    assert len(wheel) == 1


def test_kinds_of_int_are_ints(core: Core) -> None:
    """A subclass of int, such as an IntEnum, is accepted as its number."""
    wheel = core()
    entry = wheel.schedule("lunch", Moment.NOON)
    assert type(entry.deadline_ms) is int
    assert wheel.advance(Moment.NOON) == [entry]
