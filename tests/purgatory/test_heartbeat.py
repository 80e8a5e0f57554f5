"""A `HeartbeatMonitor` expires members that send no heartbeat in time.

The monitor is driven by the test, by the reaper and by asyncio's timer, and is used by many threads.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.purgatory import HeartbeatMonitor, Reaper
from wheel_sched.testing import VirtualClock

TIMEOUT_MS = 100


class Rig:
    """A monitor with a clock that the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.expired: list[str] = []
        self.monitor: HeartbeatMonitor[str] = HeartbeatMonitor(
            TIMEOUT_MS, self.expired.append, clock=self.clock, **settings
        )

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.monitor.run_due()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_silent_member_expires_once_and_not_early(rig: Rig) -> None:
    """A member that sends no heartbeat expires once, when its timeout has passed."""
    rig.monitor.add("a")
    rig.advance(TIMEOUT_MS - 1)
    assert rig.expired == []
    rig.advance(1)
    rig.advance(10 * TIMEOUT_MS)
    assert (rig.expired, rig.monitor.expired, len(rig.monitor)) == (["a"], 1, 0)


def test_a_beating_member_does_not_expire(rig: Rig) -> None:
    """A member that sends heartbeats does not expire. After each heartbeat it has the whole timeout again."""
    rig.monitor.add("a")
    for _ in range(50):
        rig.advance(TIMEOUT_MS - 1)
        assert rig.monitor.beat("a")
    assert rig.monitor.next_ms() == rig.clock.monotonic_ms() + TIMEOUT_MS
    rig.advance(TIMEOUT_MS - 1)
    assert rig.expired == []
    rig.advance(1)
    assert rig.expired == ["a"]
    assert not rig.monitor.beat("a")


def test_a_removed_or_replaced_member_never_expires_late(rig: Rig) -> None:
    """If a member is removed or replaced, its old deadline has no effect."""
    for member in ("removed", "replaced"):
        rig.monitor.add(member)
    rig.advance(60)
    assert rig.monitor.remove("removed")
    assert not rig.monitor.remove("removed")
    rig.monitor.add("replaced")
    rig.advance(60)
    assert rig.expired == []
    rig.advance(40)
    assert rig.expired == ["replaced"]


def test_what_on_expired_does_to_others_that_are_due_is_respected() -> None:
    """Several members are due. `on_expired` of the first removes one of them, replaces another and beats for a third.

    None of these three expires then.
    """
    clock, expired = VirtualClock(), list[str]()

    def on_expired(member: str) -> None:
        expired.append(member)
        if member == "first":
            monitor.remove("removed")
            monitor.add("replaced")
            assert monitor.beat("beats")

    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(TIMEOUT_MS, on_expired, clock=clock)
    for member in ("first", "removed", "replaced", "beats", "last"):
        monitor.add(member)
    clock.advance(TIMEOUT_MS)
    assert monitor.run_due() == 2
    assert expired == ["first", "last"]
    clock.advance(TIMEOUT_MS)
    monitor.run_due()
    assert sorted(expired[2:]) == ["beats", "replaced"]


def test_members_may_have_timeouts_of_their_own(rig: Rig) -> None:
    """A member added with a timeout of its own keeps it after a heartbeat, until it is added again without one."""
    rig.monitor.add("short", timeout_ms=10)
    rig.monitor.add("long", timeout_ms=1_000)
    rig.advance(9)
    assert rig.monitor.beat("short")
    rig.advance(9)
    assert rig.expired == []
    rig.advance(1)
    assert rig.expired == ["short"]
    rig.monitor.add("long")
    rig.advance(TIMEOUT_MS)
    assert rig.expired == ["short", "long"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1"])
def test_a_timeout_that_is_none_is_refused(rig: Rig, wrong: Any) -> None:
    """A wrong timeout is an error, and the member is not added."""
    with pytest.raises(ConfigError, match="timeout_ms"):
        HeartbeatMonitor(wrong, print)
    with pytest.raises(ConfigError, match="timeout_ms"):
        rig.monitor.add("a", timeout_ms=wrong)
    assert "a" not in rig.monitor


def test_an_on_expired_that_raises_leaves_the_rest_due(rig: Rig) -> None:
    """If `on_expired` raises, `run_due` raises the error, and the next `run_due` continues with the next member."""
    rig.monitor._on_expired = lambda member: rig.expired.append(member) or 1 // (member != "b")
    for member in "abc":
        rig.monitor.add(member)
    with pytest.raises(ZeroDivisionError):
        rig.advance(TIMEOUT_MS)
    assert rig.monitor.run_due() == 1
    assert rig.expired == ["a", "b", "c"]


def test_a_coarse_tick_lets_members_expire_together() -> None:
    """With a tick of 50 ms, members that are due within one tick expire together: less than a tick late, and never
    early."""
    rig = Rig(tick_ms=50)
    rig.advance(1)
    for number in range(10):
        rig.monitor.add(str(number))
        rig.advance(3)
    rig.advance(149 - 31)
    assert rig.expired == []
    rig.advance(1)
    assert len(rig.expired) == 10


def test_close_returns_and_forgets_all_members(rig: Rig) -> None:
    """`close` returns the members. Afterwards the monitor expires none of them and does not refer to them."""

    class Member:
        pass

    member = Member()
    monitor: HeartbeatMonitor[Any] = HeartbeatMonitor(TIMEOUT_MS, print, clock=rig.clock)
    monitor.add(member)
    assert monitor.close() == [member]
    reference = weakref.ref(member)
    del member
    gc.collect()
    assert (reference(), len(monitor), monitor.next_ms()) == (None, 0, None)
    assert repr(monitor) == "<HeartbeatMonitor members=0 expired=0 timeout=100ms>"


@pytest.mark.parametrize("ended", ["expired", "removed", "replaced"])
def test_nothing_keeps_a_former_member_alive(ended: str) -> None:
    """Neither the wheel nor the monitor refers to a member that has expired or was removed or replaced."""

    class Member:
        def __init__(self) -> None:
            self.me = 1

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Member)

    clock = VirtualClock()
    monitor: HeartbeatMonitor[Any] = HeartbeatMonitor(TIMEOUT_MS, lambda _: None, clock=clock)
    member = Member()
    monitor.add(member)
    if ended == "expired":
        clock.advance(TIMEOUT_MS)
        monitor.run_due()
    elif ended == "removed":
        monitor.remove(member)
    else:
        monitor.add(Member())
    reference = weakref.ref(member)
    del member
    gc.collect()
    assert reference() is None


def test_a_timer_drives_it(world: Any) -> None:
    """A monitor that is driven by a timer expires each member at the end of its timeout, for each kind of timer."""
    expired: list[str] = []
    timer = world.purgatory._schedule.__self__
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(20, expired.append, timer=timer, clock=world.clock)
    monitor.add("silent")
    monitor.add("beats")
    monitor.add("soon", timeout_ms=5)
    world.advance(7)
    assert expired == ["soon"]
    world.advance(6)
    assert monitor.beat("beats")
    world.advance(10)
    assert expired == ["soon", "silent"]
    world.advance(15)
    assert expired == ["soon", "silent", "beats"]
    monitor.add("late")
    world.advance(25)
    assert expired[3:] == ["late"]


def test_a_member_that_nothing_would_expire_is_not_taken_in() -> None:
    """If the monitor's timer is closed, `add` raises an error, and the member is not added."""
    reaper = Reaper()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(TIMEOUT_MS, print, timer=reaper)
    reaper.close()
    with pytest.raises(Rejected, match="closed"):
        monitor.add("a")
    assert (len(monitor), monitor.next_ms(), monitor.beat("a")) == (0, None, False)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_threads_beat_join_and_leave_while_members_expire(run_all: Any) -> None:
    """Four threads add, remove and beat for members. None of these expires, and each silent member expires once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    guard, expired = threading.Lock(), list[tuple[int, int]]()
    try:
        with Reaper() as reaper:

            def on_expired(member: tuple[int, int]) -> None:
                with guard:
                    expired.append(member)

            monitor: HeartbeatMonitor[tuple[int, int]] = HeartbeatMonitor(400, on_expired, timer=reaper)
            silent = [(-1, number) for number in range(200)]
            for member in silent:
                monitor.add(member, timeout_ms=5)

            def work(thread: int) -> None:
                mine = [(thread, number) for number in range(20)]
                rng = random.Random(thread)
                for member in mine:
                    monitor.add(member, timeout_ms=3_600_000)
                for _ in range(1_500):
                    member = rng.choice(mine)
                    if rng.random() < 0.8:
                        assert monitor.beat(member)
                    elif rng.random() < 0.5:
                        monitor.add(member, timeout_ms=3_600_000)
                    else:
                        assert monitor.remove(member)
                        monitor.add(member, timeout_ms=3_600_000)

            run_all([lambda thread=thread: work(thread) for thread in range(4)])
            deadline = threading.Event()
            for _ in range(3_000):
                if monitor.expired >= 200:
                    break
                deadline.wait(0.01)
            monitor.close()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(expired) == silent
