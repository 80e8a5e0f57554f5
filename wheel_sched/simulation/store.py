"""The delay store of a simulated world: one server, and a client for each process.

The server keeps its items in memory, or in a database that runs the real scripts (see `store_contents`). It keeps a
journal of the calls that write. Two faults make the server lose its last writes: it empties itself, and repeats the
journal up to an earlier moment. "rewind" is a restart that loses the last writes, as with `appendfsync everysec`.
"failover" is a replica that takes over without the last writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wheel_sched.errors import StoreFull, StoreReadOnly, StoreUnavailable
from wheel_sched.simulation.calls import MS, ConnectionRefused, Lost
from wheel_sched.simulation.locks import SimulatedCondition
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.store_contents import MEMORY, MemoryContents, StoreContents
from wheel_sched.simulation.world import SimulatedServer, World
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import Marker
from wheel_sched.store.memory import MemoryBackend

REPEATS = 2  # how often a client repeats a call after a lost reply, as the backend on Redis does
FAILOVER_MS = 300  # how long no server accepts calls while a replica takes over


def open_contents(store: str, shards: int) -> StoreContents:
    """Make the empty contents of a new store.

    Args:
        store: "memory", "fakeredis", or the URL of a server.
        shards: number of shards.

    Raises:
        ConfigError: the URL is wrong.
        ModuleNotFoundError: fakeredis or redis is not installed.
    """
    if store == MEMORY:
        return MemoryContents(shards)
    from wheel_sched.simulation.script_contents import ScriptContents

    return ScriptContents(store, shards)


class StoreServer(SimulatedServer):
    """The simulated server of the delay store.

    Args:
        world: the world that the server belongs to.
        shards: number of shards.
    """

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, "store")
        world.servers["store"] = self
        self.shards = shards
        self.contents = open_contents(world.scenario.store, shards)
        self.journal: list[tuple[int, int, list[Call[Any]]]] = []  # virtual time (ns), server's clock (us), calls
        self.generation = 0  # raised when the connections break
        self.restarts = 0  # how often the run id has changed
        self.lost_calls: list[Call[Any]] = []  # the calls that a restart or a failover has undone
        self.changed = SimulatedCondition()  # a marker was written, or the connections broke
        self._refusal: tuple[int, type[Exception]] | None = None
        self._loading_until_ns = 0

    @property
    def backend(self) -> MemoryBackend:
        """The memory store's backend, of a server that keeps its items in memory.

        Raises:
            TypeError: the server keeps its items in a database; use `contents`.
        """
        contents = self.contents
        if not isinstance(contents, MemoryContents):
            raise TypeError("this world keeps its items in a database")
        return contents.backend

    @property
    def loading(self) -> bool:
        """Whether the server still loads its data."""
        return self._loading_until_ns > self.world.scheduler.now_ns

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, and add those that write to the journal.

        Each answer is an error while the server loads. If one of the calls writes, it is also an error while the server
        refuses writes.
        """
        if self.loading:
            return [StoreUnavailable("LOADING: the server is still loading its data") for _ in calls]
        writes = any(not call.operation.reads for call in calls)
        if not writes:
            return self.contents.execute(calls, self._now_us())
        if self._refusal is not None and self._refusal[0] > self.world.scheduler.now_ns:
            error = self._refusal[1]
            return [error(f"{error.__name__}: nothing was written") for _ in calls]
        now_us = self._now_us()
        self.journal.append((self.world.scheduler.now_ns, now_us, list(calls)))
        shards = {call.shard for call in calls}
        before = [self.contents.marker(shard) for shard in shards]
        answers = self.contents.execute(calls, now_us)
        if before != [self.contents.marker(shard) for shard in shards]:
            self.changed.notify_all()
        return answers

    def _now_us(self) -> int:
        """The server's time in µs, rounded down to a millisecond, because each call carries whole milliseconds."""
        return self.wall_us() // 1_000 * 1_000

    def strike(self, fault: Fault) -> None:
        """Overrides `SimulatedServer.strike`: adds the faults of the store."""
        now_ns = self.world.scheduler.now_ns
        match fault.kind:
            case "read-only":
                self._refusal = (now_ns + fault.amount * MS, StoreReadOnly)
            case "full":
                self._refusal = (now_ns + fault.amount * MS, StoreFull)
            case "rewind":
                self._rewind(min(fault.amount, 1_000))
            case "failover":
                self.away_until_ns = now_ns + FAILOVER_MS * MS
                self._rewind(fault.amount)
            case "loading":
                self._loading_until_ns = now_ns + fault.amount * MS
                self._restart()
            case "flush-scripts":
                self.contents.flush_scripts()
            case "outage":
                super().strike(fault)
                self._drop_connections()
            case _:
                super().strike(fault)

    def _rewind(self, lost_ms: int) -> None:
        since_ns = self.world.scheduler.now_ns - lost_ms * MS
        kept = [entry for entry in self.journal if entry[0] < since_ns]
        lost = [call for _, _, calls in self.journal[len(kept) :] for call in calls]
        self.world.note("store", f"has lost {len(lost)} calls")
        self.lost_calls += lost
        self.contents.empty()
        for _, wall_us, calls in kept:
            self.contents.execute(calls, wall_us)
        self.journal = kept
        self._restart()

    def _restart(self) -> None:
        self.restarts += 1
        self._drop_connections()

    def _drop_connections(self) -> None:
        self.generation += 1
        self.changed.notify_all()


class _Waiter:
    """One blocking read of markers, which `close` ends early."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._server.changed.notify_all()


class _Answers:
    """The calls of one `RemoteStore.begin`. They are sent when `answers` is called, which returns their results."""

    def __init__(self, store: RemoteStore, calls: Sequence[Call[Any]]) -> None:
        self._store, self._calls = store, calls

    def answers(self) -> list[Any]:
        return self._store.execute(self._calls)


class _Dialect:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace


class RemoteStore:
    """A client of the simulated store server, for one simulated process. It implements `Backend`."""

    cluster = False

    def __init__(self, world: World, server: StoreServer) -> None:
        self._world, self._server = world, server
        self.dialect = _Dialect("simulated")

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Implements `Backend.execute`. It repeats a lost call with the same token, as the backend on Redis does."""
        what = "+".join(dict.fromkeys(str(call.operation.script) for call in calls)) or "nothing"
        in_doubt = False
        for _ in range(1 + REPEATS):
            try:
                return self._world.call(self._server, what, lambda: self._server.perform(calls))
            except ConnectionRefused:
                return [StoreUnavailable("the server is away", in_doubt=in_doubt) for _ in calls]
            except Lost as lost:
                in_doubt = True
                repeatable = all(
                    call.operation.token or call.operation.reads or call.operation.repeatable for call in calls
                )
                if not repeatable:
                    break
                del lost
        return [StoreUnavailable("no reply", in_doubt=True) for _ in calls]

    def begin(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> _Answers:
        """Implements `Backend.begin`."""
        return _Answers(self, calls)

    def check_server(self) -> None:
        """Implements `Backend.check_server`."""

    def info(self) -> dict[str, Any]:
        """Implements `Backend.info`."""
        return {}

    def identity(self) -> tuple[str, int] | None:
        """Implements `Backend.identity`: a restarted server has another run id."""
        try:
            return self._world.call(self._server, "identity", lambda: (f"run-{self._server.restarts}", 0))
        except (Lost, ConnectionRefused):
            return None

    def waiter(self, shard: int, timeout_ms: int) -> _Waiter:
        """Implements `Backend.waiter`."""
        return _Waiter(self._server)

    def wait_for_mark(self, waiter: _Waiter, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """Implements `Backend.wait_for_mark`."""
        server = self._server
        generation = server.generation
        if server.away_until_ns > self._world.scheduler.now_ns or server.loading:
            self._world.scheduler.block(MS)
            raise StoreUnavailable("the server is away")
        newer: dict[int, Marker] = {}

        def over() -> bool:
            for shard, seen in marks.items():
                marker = server.contents.marker(shard)
                if _number(marker.id) > _number(seen):
                    newer[shard] = marker
            return bool(newer) or waiter.closed or server.generation != generation

        with server.changed:
            server.changed.wait_for(over, None if timeout_ms == 0 else timeout_ms / 1000)
        if server.generation != generation:
            raise StoreUnavailable("the connection was closed")
        return newer

    def interrupt(self, waiter: _Waiter) -> None:
        """Implements `Backend.interrupt`."""
        waiter.close()

    def close(self) -> None:
        """Implements `Backend.close`."""


def _number(marker_id: bytes) -> int:
    return int(marker_id.partition(b"-")[0])


def remote_store(world: World, server: StoreServer, shards: int) -> DelayStore:
    """Make a `DelayStore` for the simulated process that calls this. It calls the simulated server."""
    return DelayStore(RemoteStore(world, server), shards=shards)
