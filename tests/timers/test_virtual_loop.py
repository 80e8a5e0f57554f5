"""The event loop on virtual time, tested without timers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from wheel_sched.errors import ConfigError
from wheel_sched.testing import VirtualClock
from wheel_sched.testing.virtual_loop import VirtualEventLoop


def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(**options)) as runner:
        return runner.run(main)


def test_a_long_sleep_is_over_at_once_and_in_order() -> None:
    """Sleeps of up to ten thousand virtual days take almost no real time. The shortest ends first."""
    order: list[int] = []

    async def sleep(days: int) -> None:
        await asyncio.sleep(days * 86400)
        order.append(days)

    async def main() -> float:
        before = time.monotonic()
        await asyncio.gather(*[sleep(days) for days in (10_000, 3, 700, 3, 1)])
        assert asyncio.get_running_loop().time() == 10_000 * 86400
        return time.monotonic() - before

    assert run(main()) < 30
    assert order == [1, 3, 3, 700, 10_000]


@pytest.mark.parametrize("start_s", [0, 2**24, 2**31, 2**33])
def test_sleeps_work_beyond_where_float_seconds_get_coarse(start_s: int) -> None:
    """At a loop time so large that a float of seconds is coarse, each sleep still ends, within five microseconds of
    its time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (1e-7, 1e-6, 0.001, 0.1, 1.0, 1e5):
            before = loop.time()
            await asyncio.sleep(seconds)
            assert loop.time() - before == pytest.approx(seconds, abs=5e-6)

    run(main(), clock=VirtualClock(start_s * 1000))


def test_sums_of_float_seconds_leave_no_crumbs() -> None:
    """A hundred sleeps of 0.07 s last 7 s, exact to the nanosecond."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        for _ in range(100):
            await asyncio.sleep(0.07)  # virtual
        return loop.clock.monotonic_ns()

    assert run(main()) == 7_000_000_000


def test_a_timeout_comes_before_what_takes_longer() -> None:
    """asyncio's own timeouts use virtual time."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(61)
        async with asyncio.timeout(60):
            await asyncio.sleep(59)

    run(main())


def test_time_stands_still_while_a_thread_of_the_executor_works() -> None:
    """While a thread of the executor works, virtual time does not move, so a timeout cannot end before the work."""
    released = threading.Event()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.call_soon(released.set)
        async with asyncio.timeout(5):
            await asyncio.to_thread(released.wait, 40)
        return f"{loop.time():g}"

    assert run(main()) == "0"


def test_sockets_work() -> None:
    """A server and a client talk over loopback on a virtual loop. Virtual time jumps only after 0.01 s of real
    silence."""

    async def main() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            await asyncio.sleep(3600)
            writer.write(line)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line

    assert run(main(), idle_seconds=0.01) == b"hello\n"


def test_without_autojump_time_moves_when_the_test_says_so() -> None:
    """Without autojump only `advance` moves time, called from within the loop or from another thread."""
    clock = VirtualClock()

    async def main() -> None:
        sleeping = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        clock.advance(9_999)
        await asyncio.sleep(0)
        assert not sleeping.done()
        clock.advance(1)
        await sleeping
        sleeping = asyncio.create_task(asyncio.sleep(5))
        await asyncio.sleep(0)  # now the sleep has set its timer, and the other thread may move time
        other = threading.Thread(target=clock.advance, args=[5000])
        other.start()
        await sleeping
        other.join()

    run(main(), clock=clock, autojump=False)
    assert clock.monotonic_ms() == 15_000


@pytest.mark.parametrize("options", [{"clock": 5}, {"idle_seconds": -1}, {"idle_seconds": "x"}])
def test_a_wrong_argument_makes_no_loop(options: dict[str, Any]) -> None:
    """A loop with a wrong argument is refused and leaves no socket open. An open socket would cause a warning,
    which fails the test."""
    (name,) = options
    with pytest.raises(ConfigError, match=f"expected {name}"):
        VirtualEventLoop(**options)
