"""Pytest fixtures of virtual time, for every project with wheel-sched and pytest installed.

    def test_a_reminder(virtual_clock):
        with SystemTimer(clock=virtual_clock) as timer: ...

    def test_a_timeout(virtual_loop):
        virtual_loop.run_until_complete(asyncio.sleep(3600))

The plugin adds only these two fixtures: no hooks, options, marks or warnings. `-p no:wheel_sched` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from wheel_sched.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from wheel_sched.testing.virtual_loop import VirtualEventLoop


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock at 0 that moves when the test calls `advance`. Pass it to a `SystemTimer`."""
    return VirtualClock()


@pytest.fixture
def virtual_loop() -> Iterator[VirtualEventLoop]:
    """An event loop whose time jumps from timer to timer; `virtual_loop.clock` is its clock.

    After the test the fixture cancels the loop's tasks and closes the loop.
    """
    import asyncio  # here, because most test runs that load this plugin need neither

    from wheel_sched.testing.virtual_loop import VirtualEventLoop

    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualEventLoop)  # noqa: S101  # made by the factory above
        yield loop
