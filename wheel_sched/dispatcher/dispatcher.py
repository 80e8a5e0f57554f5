"""The dispatcher: a thread that drives the owner loop, with its workers and listeners around it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.dispatcher.claim_source import ClaimSource, PushTarget
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.listener import Listeners
from wheel_sched.dispatcher.owner_loop import AT_ONCE, OWNER, OwnerLoop
from wheel_sched.dispatcher.publisher import Publisher
from wheel_sched.errors import ConfigError
from wheel_sched.purgatory import Purgatory
from wheel_sched.store import Claimed, DelayStore, Settlement


class Dispatcher:
    """Releases the due items of a store, on time, to a publisher.

    Args:
        store: an open delay store.
        publisher: publishes the items. It also decides about items that the server refused to push.
        push: when given, the server pushes due items itself (exactly once), and the publisher gets only the items that
            the server refused. You cannot give `claims` as well. Defaults to None.
        claims: the claim source of this dispatcher. Defaults to `SharedLeases`.
        config: the settings. Defaults to `DispatcherConfig()`.
        clock: local monotonic time and waiting. Defaults to the machine's.
        on_settled: called in the owner thread with (claimed, settlement, now_ms) after each settled item, but not for
            items that the server pushed. It must return quickly. Defaults to None.

    Raises:
        ConfigError: `push` and `claims` are given together.

    Attributes:
        loop: what the owner thread does; for inspection only.
        stats: counters since the start.

    Threads: any thread may call any method. A second `start` or `stop` does nothing.
    """

    def __init__(
        self,
        store: DelayStore,
        publisher: Publisher,
        *,
        push: PushTarget | None = None,
        claims: ClaimSource | None = None,
        config: DispatcherConfig | None = None,
        clock: Clock | None = None,
        on_settled: Callable[[Claimed, Settlement, int], None] | None = None,
    ) -> None:
        if push is not None and claims is not None:
            raise ConfigError("expected push or claims, got both; nothing was started")
        self.store = store
        self.publisher = publisher
        self.push = push
        self.config = config = config or DispatcherConfig()
        self._clock = clock = clock or SystemClock()
        self.loop = OwnerLoop(
            store,
            publisher,
            push=push,
            claims=claims,
            config=config,
            clock=clock,
            on_settled=on_settled,
            wake=self._wake,
            listen=self._listen,
        )
        self.stats = self.loop.stats
        self._wakeup = threading.Condition()
        self._owner = threading.Thread(target=self._own, name=OWNER, daemon=True)
        self._listeners = Listeners(
            store.backend, self.loop.marked, self.loop.reconnected, block_ms=config.sweep_ms + 5_000
        )
        self._state = "new"
        self._state_lock = threading.Lock()

    def __repr__(self) -> str:
        stats, state = self.stats, f"{self._state} shards={self.store.shards}"
        numbers = f"in_flight={stats.in_flight} published={stats.published} armed={len(self.loop.shards)}"
        return f"<Dispatcher {state} {numbers}>"

    def __enter__(self) -> Dispatcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def problems(self) -> list[str]:
        """The problems that a restart would solve: a thread does not run, or a step of the owner lasts over 60 s."""
        if not self._owner.is_alive():
            return ["its thread has ended"]
        threads = (*self.loop.workers.threads, *self._listeners.threads)
        ended = [f"{thread.name} has ended" for thread in threads if not thread.is_alive()]
        return ended * (self._state == "running") + self.loop.watchdog.stuck(OWNER)  # a drain ends threads on purpose

    @property
    def ready(self) -> bool:
        """Whether the owner and the listeners run, every shard was read, and store and publisher answer in time."""
        watchdog = self.loop.watchdog
        runs = self._owner.is_alive() and self._state == "running"
        reads = self.loop.reads_store and not watchdog.store_is_slow() and not self._listeners.down
        return runs and reads and not watchdog.stuck()

    @property
    def purgatory(self) -> Purgatory[Hashable]:
        """The purgatory in which in-flight batches and a drain wait. Use it for inspection only."""
        return self.loop.in_flight.purgatory

    def start(self) -> None:
        """Start the owner thread and the worker threads."""
        with self._state_lock:
            if self._state != "new":
                return
            self._state = "running"
            self.loop.workers.start()
            self._owner.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Drain and end: claim no more, wait up to `timeout_s` for the answers of publishers, and settle the batches.

        Items that were given to a publisher and have no answer by then are in doubt. They wait again in the store,
        where another dispatcher can claim them. With a transactional publisher, such a claim stays open until its shard
        is taken over. This call does not wait if the owner thread or a worker makes it.
        """
        with self._state_lock:
            if self._state == "new":
                self._state = "stopped"
            if self._state == "stopped":
                return
            self.loop.drain(self._clock.monotonic_ns() + int(timeout_s * 1e9))
            self._state = "stopping"
        self._listeners.stop()
        if threading.current_thread() not in (self._owner, *self.loop.workers.threads):
            self._owner.join(timeout_s + 5)
        with self._state_lock:
            self._state = "stopped"

    def _own(self) -> None:
        while not self.loop.finished:
            self._sleep(self.loop.step())
        self.loop.workers.stop()
        self._listeners.stop()

    def _sleep(self, until_us: int | None) -> None:
        if until_us == AT_ONCE:
            return
        with self._wakeup:
            if self.loop.has_posts:
                return
            left_ms = None if until_us is None else max(0, until_us - self._clock.monotonic_ns() // 1000) / 1000
            self._clock.wait(self._wakeup, left_ms)

    def _wake(self) -> None:
        with self._wakeup:
            self._wakeup.notify()

    def _listen(self, marks: Mapping[int, bytes]) -> None:
        self._listeners.start(marks)
