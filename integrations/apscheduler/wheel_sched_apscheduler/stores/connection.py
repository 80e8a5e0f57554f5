"""A jobstore's connection to its delay store.

The store is opened when a caller first needs it. Between two answers of the server, `now_ms` estimates the server's
time. All parts of a jobstore log to `logger`, so that their lines carry the alias of the jobstore.

`PendingCommand` and `PendingSettlement` wait to be sent in the next round trip.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from wheel_sched.errors import NamespaceMismatch, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import MAX_BATCH, DelayStore, Settlement, open_store
from wheel_sched.store.core.call import Call
from wheel_sched_apscheduler.occurrence import Occurrence

logger = logger_of("wheel_sched.apscheduler")
Key = TypeVar("Key")
Entry = TypeVar("Entry")


class StoreConnection:
    """See the module.

    Args:
        target: URL or client of the server.
        options: the other arguments of `open_store`: namespace, shards, durability, replicas.
        store: an open store to use instead of `target`. Its owner closes it. Defaults to None.
    """

    def __init__(self, target: Any, options: Mapping[str, Any], store: DelayStore | None = None) -> None:
        self.target = target
        self.options = dict(options)
        self.shards: int = self.options["shards"] if store is None else store.shards
        self.logger: Any = logging.getLogger("apscheduler.jobstores")
        self._store = store
        self._owns_store = store is None
        self._opening = threading.Lock()
        self._server_ahead_ms = 0

    @property
    def store(self) -> DelayStore:
        """The delay store, opened on first use.

        Raises:
            StoreError: the server is away, too old, or holds the namespace with other settings.
        """
        if self._store is None:
            with self._opening:
                if self._store is None:
                    opened = open_store(self.target, **self.options)
                    self._store = SelfRestoringStore(opened.backend, shards=opened.shards)
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether the store was opened."""
        return self._store is not None

    def now_ms(self) -> int:
        """The server's time in ms since 1970, estimated from its last answer. No I/O."""
        return time.time_ns() // 1_000_000 + self._server_ahead_ms

    def note_server_time(self, server_ms: int, local_ms: int) -> None:
        """Remember by how much the server's clock is ahead of this machine's clock."""
        self._server_ahead_ms = server_ms - local_ms

    def close(self) -> None:
        """Close the store if this connection has opened it. Idempotent."""
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None


class SelfRestoringStore(DelayStore):
    """A delay store that survives FLUSHALL: the jobs are lost, but the scheduler continues.

    When the namespace has vanished, the store creates it again, empty, and repeats the calls that were refused for
    that reason. It checks shard 0 first. If shard 0 exists with other settings, the store creates nothing, and the
    refusal is the answer.
    """

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """As `DelayStore.execute`."""
        answers = super().execute(calls)
        refused = [at for at, answer in enumerate(answers) if _says_absent(answer)]
        if refused:
            try:
                DelayStore(self.backend, shards=self.shards).open()
            except StoreError:
                return answers
            logger.warning("The namespace was gone (was the server flushed?); it was created again, empty")
            for at, again in zip(refused, super().execute([calls[at] for at in refused]), strict=True):
                answers[at] = again
        return answers


def _says_absent(answer: Any) -> bool:
    """Whether a namespace is missing. A frozen one, or one with other shards, is a mismatch with another code."""
    return isinstance(answer, NamespaceMismatch) and str(answer).startswith("WSABSENT")


class PendingSettlement(NamedTuple):
    """A settlement for the store. `split`: of a job whose run was split off. Without `occurrence`: of no run."""

    shard: int
    claim_number: int
    settlement: Settlement
    occurrence: Occurrence | None = None
    split: bool = False


class PendingCommand:
    """One call, the occurrences or settlements that it is about, and the handler of its answer."""

    __slots__ = ("about", "answered", "call")

    def __init__(self, call: Call[Any], about: Sequence[Any], answered: Callable[[Any, Sequence[Any]], None]) -> None:
        self.call = call
        self.about = about
        self.answered = answered


def ignore_answer(_: Any, __: Sequence[Any]) -> None:
    """The handler of a command whose answer changes nothing in this process."""


def commands_of(
    entries: Mapping[Key, list[Entry]],
    call_of: Callable[[Key, list[Entry]], Call[Any]],
    answered: Callable[[Any, Sequence[Any]], None] = ignore_answer,
) -> list[PendingCommand]:
    """Commands about many entries, at most `MAX_BATCH` of them in each.

    Args:
        entries: grouped by their shard, or by their shard and claim.
        call_of: makes the call for one batch.
        answered: handles the answer of a call. Defaults to nothing.
    """
    return [
        PendingCommand(call_of(key, batch), batch, answered)
        for key, listed in entries.items()
        for batch in (listed[at : at + MAX_BATCH] for at in range(0, len(listed), MAX_BATCH))
    ]
