"""What the watchdog reports to a health probe: threads that ended, a stuck owner, a publisher that does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Batch, Failed, PublisherTraits
from wheel_sched.dispatcher import workers as workers_module
from wheel_sched.dispatcher.workers import STUCK_AFTER_MS, Watchdog
from wheel_sched.store import Claimed, Done
from wheel_sched.testing import VirtualClock

if TYPE_CHECKING:
    from conftest import World

OWNER = "wheel-sched-dispatcher"


class Blocking:
    """A publisher that returns only when the test lets it."""

    traits = PublisherTraits()

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def publish(self, batch: Batch) -> None:
        self.entered.set()
        self.go_on.wait(60)
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def refuse(self, item: Claimed, reason: str) -> Failed:
        return Failed(reason)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    publisher = Blocking()
    yield publisher
    publisher.go_on.set()


def test_a_step_that_lasts_too_long_is_reported_until_it_ends() -> None:
    """A step that lasts a minute is reported. A thread that beats, that waits for work or that may take longer is
    not."""
    clock = VirtualClock()
    watchdog = Watchdog(clock)
    for name in ("steps", "stuck", "allowed longer", "waits"):
        watchdog.beat(name, 10 * STUCK_AFTER_MS if name == "allowed longer" else None)
    watchdog.rest("waits")
    clock.advance(STUCK_AFTER_MS - 1)
    assert watchdog.stuck() == []
    watchdog.beat("steps")
    clock.advance(1)
    assert watchdog.stuck() == ["stuck is stuck at one step"]
    assert (watchdog.stuck("steps", "allowed longer"), watchdog.stuck("stuck")) == ([], ["stuck is stuck at one step"])
    assert repr(watchdog) == "<Watchdog at_work=2 stuck=['stuck']>"
    watchdog.beat("stuck")
    assert watchdog.stuck() == []
    clock.advance(STUCK_AFTER_MS)
    assert len(watchdog.stuck()) == 2
    for name in ("steps", "stuck", "allowed longer"):
        watchdog.rest(name)
    clock.advance(100 * STUCK_AFTER_MS)
    assert watchdog.stuck() == []


@pytest.mark.parametrize("end", ["rest", "beat"])
def test_a_thread_that_beats_while_a_probe_looks_is_not_stuck_afterwards(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a step ends just while a probe finds it too long, the thread is not stuck afterwards."""
    clock = VirtualClock()
    probing, go_on = threading.Event(), threading.Event()
    original: Any = workers_module.HeartbeatMonitor

    def made(session_ms: int, expired: Callable[[str], None], **settings: Any) -> Any:
        def slowly(name: str) -> None:
            probing.set()
            go_on.wait(30)
            expired(name)

        return original(session_ms, slowly, **settings)

    monkeypatch.setattr(workers_module, "HeartbeatMonitor", made)
    watchdog = Watchdog(clock)
    watchdog.beat("owner")
    clock.advance(STUCK_AFTER_MS)
    probe = threading.Thread(target=watchdog.stuck)
    probe.start()
    assert probing.wait(30)
    owner = threading.Thread(target=getattr(watchdog, end), args=("owner",))
    owner.start()
    go_on.set()
    probe.join(30)
    owner.join(30)
    assert watchdog.stuck() == []


def test_the_heartbeat_monitor_reports_a_stuck_owner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a store call of the owner thread hangs for a minute, the heartbeat monitor reports the thread once. When
    the call returns, the report ends."""
    monitors: list[Any] = []
    original: Any = workers_module.HeartbeatMonitor

    def made(*args: Any, **settings: Any) -> Any:
        monitors.append(original(*args, **settings))
        return monitors[-1]

    monkeypatch.setattr(workers_module, "HeartbeatMonitor", made)
    dispatcher = world.dispatcher(lease_ms=100 * STUCK_AFTER_MS)
    (monitor,) = monitors
    entered, go_on = threading.Event(), threading.Event()
    begin = world.store.begin

    def hangs(calls: Any) -> Any:
        assert OWNER in monitor
        entered.set()
        go_on.wait(60)
        return begin(calls)

    monkeypatch.setattr(world.store, "begin", hangs)
    world.put("m0")
    assert entered.wait(30)
    assert dispatcher.problems() == []
    world.clock.advance(STUCK_AFTER_MS)
    assert dispatcher.problems() == [f"{OWNER} is stuck at one step"] == dispatcher.problems()
    assert monitor.expired == 1
    go_on.set()
    world.received(1)
    assert dispatcher.problems() == []
    world.until(lambda: len(monitor) == 0, "everybody's rest")


def test_an_idle_dispatcher_lives_however_long_it_sleeps(world: World) -> None:
    """A sleeping dispatcher needs no heartbeat. So it does not wake up for one, and is not reported as stuck."""
    dispatcher = world.dispatcher()
    for _ in range(3):
        world.advance(100 * STUCK_AFTER_MS)
        assert (dispatcher.problems(), dispatcher.ready) == ([], True)
    world.put("later", in_ms=50 * STUCK_AFTER_MS)
    world.advance(49 * STUCK_AFTER_MS)
    assert (dispatcher.problems(), dispatcher.ready) == ([], True)


def test_a_publisher_that_does_not_return_is_unready_and_no_reason_for_a_restart(
    world: World, blocking: Blocking
) -> None:
    """A dispatcher is not ready if its publisher does not return within the publish timeout and a minute more.

    `problems` reports nothing, because the publisher waits for a broker, and a restart would not help.
    """
    dispatcher = world.dispatcher(
        publisher=blocking, publish_timeout_ms=5_000, backoff_ms=10_000_000, backoff_max_ms=10_000_000
    )
    world.put("m0")
    assert blocking.entered.wait(30)
    world.advance(STUCK_AFTER_MS + 4_999)
    assert dispatcher.ready
    world.advance(1)
    assert not dispatcher.ready
    assert dispatcher.problems() == []
    blocking.go_on.set()
    world.until(lambda: dispatcher.ready, "ready")


def test_a_listener_that_always_fails_makes_it_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the listener always fails, the dispatcher is not ready, because an earlier item would wait for a sweep.

    `problems` reports nothing, because a restart would not help.
    """

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(world.backend, "wait_for_mark", fails)
    dispatcher = world.dispatcher()
    world.until(lambda: not dispatcher.ready, "the listener's failure")
    assert dispatcher.problems() == []


def test_threads_that_end_in_a_drain_are_no_ailment(
    world: World, blocking: Blocking, threads: Callable[[], list[threading.Thread]]
) -> None:
    """In a drain the listener ends while a batch is still in flight. `problems` does not report the ended thread."""
    dispatcher = world.dispatcher(publisher=blocking)
    world.put("m0")
    assert blocking.entered.wait(30)
    stopping = threading.Thread(target=dispatcher.stop, args=(60,))
    stopping.start()
    world.until(lambda: all(thread.name != "wheel-sched-listener" for thread in threads()), "listeners")
    assert dispatcher.problems() == []
    blocking.go_on.set()
    stopping.join(30)
    assert not stopping.is_alive()
