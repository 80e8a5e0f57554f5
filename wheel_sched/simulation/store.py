"""The delay store of a simulated world: one server on the memory backend, and a client for each process.

The server keeps a journal of its calls. "rewind" plays the journal again up to an earlier moment: the server restarts
and has lost its last writes, as with `appendfsync everysec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wheel_sched.errors import StoreFull, StoreReadOnly, StoreUnavailable
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import MS, ConnectionRefused, Lost, SimulatedServer, World
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import Marker
from wheel_sched.store.memory import MemoryBackend

REPEATS = 2  # as the backend on Redis repeats a call after a lost reply


class StoreServer(SimulatedServer):
    """The server of the delay store.

    Args:
        world: the world.
        shards: number of shards.
    """

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, "store")
        world.servers["store"] = self
        self._shards = shards
        self._now_us: int | None = None  # while the journal is played again
        self.backend = self._new()
        self.journal: list[tuple[int, int, list[Call[Any]]]] = []  # true time, wall time, calls
        self.generation = 0  # raised when the connections break
        self.restarts = 0
        self.lost_calls: list[Call[Any]] = []  # the calls that a restart has undone
        self._refusal: tuple[int, type[Exception]] | None = None

    def _new(self) -> MemoryBackend:
        return MemoryBackend(self._shards, wall_us=self._wall)

    def _wall(self) -> int:
        return self.wall_us() if self._now_us is None else self._now_us

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, and keep them in the journal."""
        if self._refusal is not None and self._refusal[0] > self.world.scheduler.now_ns:
            writes = any(not call.operation.reads for call in calls)
            if writes:
                error = self._refusal[1]
                return [error(f"{error.__name__}: nothing was written") for _ in calls]
        if any(not call.operation.reads for call in calls):
            self.journal.append((self.world.scheduler.now_ns, self.wall_us(), list(calls)))
        return self.backend.execute(calls)

    def strike(self, fault: Fault) -> None:
        """See `SimulatedServer`."""
        now_ns = self.world.scheduler.now_ns
        if fault.kind == "read-only":
            self._refusal = (now_ns + fault.amount * MS, StoreReadOnly)
        elif fault.kind == "full":
            self._refusal = (now_ns + fault.amount * MS, StoreFull)
        elif fault.kind == "rewind":
            self._rewind(min(fault.amount, 1_000))
        else:
            super().strike(fault)
            if fault.kind == "outage":
                self._drop_connections()

    def _rewind(self, lost_ms: int) -> None:
        now_ns = self.world.scheduler.now_ns
        since_ns = now_ns - lost_ms * MS
        kept = [entry for entry in self.journal if entry[0] < since_ns]
        self.lost_calls += [call for _, _, calls in self.journal[len(kept) :] for call in calls]
        old, self.backend = self.backend, self._new()
        for _, wall_us, calls in kept:
            self._now_us = wall_us
            self.backend.execute(calls)
        self._now_us = None
        self.journal = kept
        self.generation += 1
        self.restarts += 1
        old.close()

    def _drop_connections(self) -> None:
        self.generation += 1
        with self.backend._changed:
            self.backend._changed.notify_all()


class _Answers:
    """Calls that were sent; their answers come later."""

    def __init__(self, store: RemoteStore, calls: Sequence[Call[Any]]) -> None:
        self._store, self._calls = store, calls

    def answers(self) -> list[Any]:
        return self._store.execute(self._calls)


class _Dialect:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace


class RemoteStore:
    """A backend whose server is a `StoreServer`: one client of one process."""

    cluster = False

    def __init__(self, world: World, server: StoreServer) -> None:
        self._world, self._server = world, server
        self.dialect = _Dialect("simulated")

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """See `Backend`. A lost call is repeated under its token, as the backend on Redis does."""
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
        """See `Backend`."""
        return _Answers(self, calls)

    def check_server(self) -> None:
        """See `Backend`."""

    def info(self) -> dict[str, Any]:
        """See `Backend`."""
        return {}

    def identity(self) -> tuple[str, int] | None:
        """See `Backend`: a restarted server has another run id."""
        try:
            return self._world.call(self._server, "identity", lambda: (f"run-{self._server.restarts}", 0))
        except (Lost, ConnectionRefused):
            return None

    def waiter(self, shard: int, timeout_ms: int) -> Any:
        """See `Backend`."""
        return self._server.backend.waiter(shard, timeout_ms)

    def wait_for_mark(self, waiter: Any, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """See `Backend`."""
        server = self._server
        generation = server.generation
        if server.away_until_ns > self._world.scheduler.now_ns:
            self._world.scheduler.block(MS)
            raise StoreUnavailable("the server is away")
        found = server.backend.wait_for_mark(waiter, marks, timeout_ms)
        if server.generation != generation:
            raise StoreUnavailable("the connection was closed")
        return found

    def interrupt(self, waiter: Any) -> None:
        """See `Backend`."""
        waiter.close()

    def close(self) -> None:
        """See `Backend`."""


def remote_store(world: World, server: StoreServer, shards: int) -> DelayStore:
    """A delay store of the calling process, ready to use."""
    return DelayStore(RemoteStore(world, server), shards=shards)
