"""MemoryBackend: the delay store of one process. It answers as the Lua scripts of a server do, without durability.

It is for tests, demonstrations and machines without a server. Any thread may call anything: the backend has one lock
and holds it for all calls of one `execute` (about a millisecond for each 500 items). Cost per item: about 3 us each to
schedule, claim and settle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from wheel_sched.errors import ConfigError, NamespaceMismatch, WheelSchedError
from wheel_sched.store.core.call import Call, CompletedCalls
from wheel_sched.store.core.items import Marker
from wheel_sched.store.core.plans import SCHEMA, Open
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.rooms import ROOMS


def wall_clock_us() -> int:
    return time.time_ns() // 1000


class MemoryWaiter:
    """What a thread passes to `MemoryBackend.wait_for_mark`. After `close`, a wait with it returns at once."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self.closed = False

    def close(self) -> None:
        with self._condition:
            self.closed = True
            self._condition.notify_all()


class MemoryBackend:
    """Performs calls, as `RedisBackend` does.

    Args:
        shards: number of shards.
        clock: "server" (the process's wall clock) or "test" (every call gives the time). Defaults to "server".
        wall_us: the wall clock in microseconds. Defaults to the system's.
    """

    cluster = False

    def __init__(self, shards: int, clock: str = "server", wall_us: Callable[[], int] = wall_clock_us) -> None:
        if clock not in ("server", "test"):
            raise ConfigError(f"expected clock to be 'server' or 'test', got: {clock!r}")
        self.clock = clock
        self.shards = [MemoryShard(number, clock, wall_us) for number in range(shards)]
        for shard in self.shards:
            for room in ROOMS:
                if room.in_memory is not None:
                    shard.add_room(room.in_memory)
        self._wall_us = wall_us
        self._changed = threading.Condition()
        self._closed = False

    def __repr__(self) -> str:
        waiting = sum(len(shard.due) for shard in self.shards)
        return f"<MemoryBackend shards={len(self.shards)} clock={self.clock} due={waiting}>"

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls. Returns a value or an exception for each call, in order."""
        answers: list[Any] = []
        marked = False
        with self._changed:
            for call in calls:
                try:
                    answer, raised = self._perform(call, now_ms)
                    marked = marked or raised
                except WheelSchedError as error:
                    answer = error
                answers.append(answer)
            if marked:
                self._changed.notify_all()
        return answers

    def begin(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> CompletedCalls:
        """Perform calls at once, so the returned object has their answers already."""
        return CompletedCalls(self.execute(calls, now_ms))

    def _perform(self, call: Call[Any], now_ms: int | None) -> tuple[Any, bool]:
        operation: Any = call.operation
        if not 0 <= call.shard < len(self.shards):
            raise NamespaceMismatch(f"there is no shard {call.shard} of {len(self.shards)}: nothing was changed")
        shard = self.shards[call.shard]
        if isinstance(operation, Open):
            return (SCHEMA, len(self.shards), self.clock, shard.epoch, self._wall_us()), False
        shard.begin(now_ms, reading=operation.reads or operation.while_frozen)
        return operation.in_memory(shard), shard.end()

    def check_server(self) -> None:
        """Do nothing: there is no server."""

    def info(self) -> dict[str, Any]:
        return {}

    def identity(self) -> None:
        """Returns None, because this store has no server."""
        return None

    def waiter(self, shard: int, timeout_ms: int) -> MemoryWaiter:
        """A new waiter for `wait_for_mark`; close it at the end."""
        return MemoryWaiter(self._changed)

    def wait_for_mark(self, waiter: MemoryWaiter, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """Block until a marker is newer than `marks[shard]`. Returns the newer markers by shard, {} at the timeout.

        A timeout of 0 waits for ever, as XREAD does. With a closed waiter or backend it returns at once.
        """
        newer: dict[int, Marker] = {}

        def over() -> bool:
            for shard, mark in marks.items():
                if _number(self.shards[shard].mark.id) > _number(mark):
                    newer[shard] = self.shards[shard].mark
            return bool(newer) or waiter.closed or self._closed

        with self._changed:
            self._changed.wait_for(over, None if timeout_ms == 0 else timeout_ms / 1000)
        return newer

    def interrupt(self, waiter: MemoryWaiter) -> None:
        """Let a `wait_for_mark` that blocks in another thread return. The waiter cannot be used again."""
        waiter.close()

    def close(self) -> None:
        """Wake all waiters. Idempotent. The items stay until the object is freed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _number(mark: bytes) -> int:
    return int(mark.partition(b"-")[0])
