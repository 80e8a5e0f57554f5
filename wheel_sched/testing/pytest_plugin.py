"""Virtual time as pytest fixtures, for every project that has wheel-sched and pytest installed.

    def test_a_reminder(virtual_clock):
        with SystemTimer(clock=virtual_clock) as timer: ...

    def test_a_timeout(virtual_loop):
        virtual_loop.run_until_complete(asyncio.sleep(3600))

Adds the two fixtures and nothing else: no hooks, options, marks or warnings. `-p no:wheel_sched` leaves it out.
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
    """A clock at 0 that moves when the test calls `advance`; give it to a `SystemTimer`."""
    return VirtualClock()


@pytest.fixture
def virtual_loop() -> Iterator[VirtualEventLoop]:
    """An event loop whose time jumps from timer to timer; `virtual_loop.clock` is its clock.

    At the end its tasks are cancelled and it is closed.
    """
    import asyncio  # here, since most test runs that load this plugin want neither

    from wheel_sched.testing.virtual_loop import VirtualEventLoop

    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualEventLoop)  # noqa: S101  # the factory above made it
        yield loop
