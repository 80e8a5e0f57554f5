"""If a callback raises, the error is reported, and other timers run as usual."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest


def test_an_exception_is_handed_to_on_error_with_its_handle(facade: Any) -> None:
    """If a callback raises, `on_error` gets the timer's handle and the error, and other timers run. Kafka's timer
    swallows the error."""
    heard, fired = [], []
    timer = facade.timer(on_error=lambda handle, error: heard.append((handle, str(error))))

    def fail(text: str) -> None:
        raise ValueError(text)

    one = timer.schedule(1, fail, "one")
    timer.schedule(1, fired.append, "between")
    two = timer.schedule(2, fail, "two")
    facade.until(lambda: len(heard) == 2)
    assert heard == [(one, "one"), (two, "two")]
    assert fired == ["between"]
    assert timer.statistics.failed == 2


def test_a_handler_that_raises_is_reported_and_the_timer_goes_on(
    virtual: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """If `on_error` itself raises, its error is logged, and other timers run.

    On asyncio, the loop's exception handler gets the error, which logs it by default.
    """
    fired: list[int] = []

    def broken(_: Any, __: BaseException) -> None:
        raise RuntimeError("the handler's own")

    timer = virtual.timer(on_error=broken)
    timer.schedule(1, lambda: 1 / 0)
    timer.schedule(2, fired.append, 1)
    with caplog.at_level(logging.ERROR):
        virtual.pass_ms(2)
    assert fired == [1]
    assert "on_error raised" in caplog.text
    assert "the handler's own" in caplog.text


def test_without_a_handler_an_exception_is_logged_with_its_traceback(
    virtual: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `on_error`, the error is logged with its traceback."""
    timer = virtual.timer(on_error=None)
    timer.schedule(1, lambda: 1 / 0)
    with caplog.at_level(logging.ERROR):
        virtual.pass_ms(1)
    (record,) = caplog.records
    assert "a timer's callback raised" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_system_exit_in_a_callback_does_not_end_the_reaper(threads: Any) -> None:
    """On threads, SystemExit in a callback is reported as any other error. Otherwise it would end the reaper thread
    silently."""
    timer, fired = threads.timer(), []

    def leave() -> None:
        raise SystemExit(3)

    timer.schedule(1, leave)
    timer.schedule(2, fired.append, 1)
    threads.pass_ms(2)
    assert fired == [1]
    assert [type(error) for error in threads.errors] == [SystemExit]


def test_system_exit_in_a_callback_ends_the_loop_and_loses_no_timer(loop_facade: Any) -> None:
    """On asyncio, SystemExit in a callback ends the loop. The other timers of the tick run when the loop runs again."""
    timer, fired = loop_facade.timer(), []

    def leave() -> None:
        raise SystemExit(3)

    for number in range(2):
        timer.schedule(5, fired.append, number)
    timer.schedule(5, leave)
    for number in range(2, 5):
        timer.schedule(5, fired.append, number)
    with pytest.raises(SystemExit):
        loop_facade.pass_ms(5)
    assert (fired, len(timer)) == ([0, 1], 3)
    loop_facade.pass_ms(1)
    assert fired == [0, 1, 2, 3, 4]


def test_the_exception_of_a_coroutine_is_reported(loop_facade: Any) -> None:
    """If a callback's coroutine raises, the error is reported. A coroutine that was cancelled is no error."""
    timer = loop_facade.timer()

    async def fail() -> None:
        await asyncio.sleep(0.001)  # the facade's own time
        raise ValueError("late")

    async def give_up() -> None:
        raise asyncio.CancelledError

    timer.schedule(1, fail)
    timer.schedule(1, give_up)
    loop_facade.pass_ms(5)
    assert [str(error) for error in loop_facade.errors] == ["late"]
    assert len(timer) == 0


def test_a_failed_timer_may_be_tried_again_after_a_while(virtual: Any) -> None:
    """`on_error` can schedule the failed timer again, after a delay that it chooses.

    The cases are from Kafka: testRetryableTimer, its variant WithCustomBackoff, and testNonRetryableTimer.
    """
    ran: list[tuple[str, int]] = []

    def run(name: str, failures: int) -> None:
        ran.append((name, virtual.now_ms()))
        if len([one for one, _ in ran if one == name]) <= failures:
            raise ValueError(name)

    def again(handle: Any, error: BaseException) -> None:
        if str(error) != "once":
            assert handle.reschedule(500 if str(error) == "default" else 70)

    timer = virtual.timer(on_error=again)
    handles = [
        timer.schedule(10, run, name, failures, key=name)
        for name, failures in (("default", 2), ("custom", 1), ("once", 9))
    ]
    virtual.pass_ms(2000)
    assert sorted(ran) == [
        ("custom", 10),
        ("custom", 80),
        ("default", 10),
        ("default", 510),
        ("default", 1010),
        ("once", 10),
    ]
    assert {handle.state.value for handle in handles} == {"fired"}
    assert len(timer) == 0
