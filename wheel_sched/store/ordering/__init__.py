"""OrderedKeys: a message that fails closes its ordering key and becomes its head. Later messages are parked.

    closed by a failure ──► head waits for its next attempt ──► succeeds or is given up ──► the next parked one is due
                            later messages of the key are parked                            none: the key is open

A *scope* is one ordered source of one group (a partition of a topic). It decides the shard, so one script can change
the key locks of a scope, their heads and the messages parked behind them. A reader owns its scope under a lease. A
reader that has lost its scope can neither close keys nor park messages.

An *id base* names a message: the ids of its items are `<id base>.<attempt>`. Items of ordered messages carry the ref
`ref_of(lock)`, and the scope is their route. When the head of a key dies or is cancelled, the script that ends it makes
the next parked item the head.

Every call may be repeated after an error, except `pass_by_hand`: a repeat may remove the next head too.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from wheel_sched.store.core.call import Operation
from wheel_sched.store.core.delay_store import Capability
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.ordering.operations import (
    UNKNOWN_HEAD,
    ClosedKey,
    CloseKeys,
    CountParked,
    ListKeys,
    LookAtHeads,
    Owner,
    OwnScope,
    ParkItems,
    PassHeads,
    ScopeOwnership,
)

__all__ = [
    "UNKNOWN_HEAD",
    "ClosedKey",
    "OrderedKeys",
    "Owner",
    "ScopeOwnership",
    "lock_of",
    "ref_of",
    "route_of",
    "scope_of",
]

Row = TypeVar("Row", bound=Sequence[Any])
T = TypeVar("T")


def scope_of(group: str, topic: str, partition: int = 0) -> str:
    """The scope of one ordered source of a group: 12 url-safe characters."""
    return _digest(9, group.encode(), topic.encode(errors="surrogateescape"), b"%d" % partition)


def lock_of(scope: str, key: bytes) -> str:
    """The name of the lock of a key in a scope: `<scope>.<16 url-safe characters>`."""
    return f"{scope}.{_digest(12, key)}"


def ref_of(lock: str) -> str:
    """The ref that the items of an ordered message have. It names the lock of the message's key."""
    return f"lock:{lock}"


def route_of(lock: str) -> str:
    """The route of items of an ordered message: the scope, so that they lie in the shard of their lock."""
    return lock.partition(".")[0]


def _digest(size: int, *parts: bytes) -> str:
    digest = blake2b(digest_size=size)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return urlsafe_b64encode(digest.digest()).decode()


class OrderedKeys(Capability):
    """Closes ordering keys in a store, and parks the messages behind their heads. Reports which keys are closed."""

    def acquire(self, scope: str, holder: str, lease_ms: int) -> ScopeOwnership:
        """Acquire a scope for `lease_ms` from now, or extend the lease.

        If the answer has epoch 0, another holder owns the scope, and its lease ends in `for_ms`.
        """
        return self._one(scope, OwnScope(scope, holder, lease_ms))

    def release(self, scope: str, holder: str) -> None:
        """Release a scope, so that another reader can acquire it at once."""
        self._one(scope, OwnScope(scope, holder, 0))

    def close(self, owner: Owner, rows: Sequence[tuple[str, str, bool, str]]) -> list[Outcome]:
        """Close keys. A row is (lock, id base, position_derived, label for people); see `CloseKeys`."""
        return self._paged(owner.scope, rows, lambda part: CloseKeys(owner, part))

    def park(self, owner: Owner, cap: int, rows: Sequence[tuple[str, str, bool, Item]]) -> list[Outcome]:
        """Park items. A row is (lock, id base, position_derived, item); see `ParkItems`.

        Raises:
            Rejected: an item is malformed; none was parked.
        """
        for *_, item in rows:
            item.check()
        return self._paged(owner.scope, rows, lambda part: ParkItems(owner, cap, part))

    def look(self, rows: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Whether the message of each (lock, id base) may be the head of its key; see `LookAtHeads`."""
        return self._by_scope(rows, LookAtHeads)

    def succeeded(self, rows: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Report that heads (lock, id base) have succeeded. The next messages of their keys are due (`PassHeads`)."""
        return self._by_scope(rows, lambda part: PassHeads("s", part))

    def given_up(self, rows: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Report that the heads (lock, id base) are dead. The next messages of their keys are due."""
        return self._by_scope(rows, lambda part: PassHeads("d", part))

    def pass_by_hand(self, locks: Sequence[str]) -> list[Outcome]:
        """Remove the heads of these locks, and make the next messages due. ABSENT: the key is not closed."""
        return self._by_scope([(lock, "") for lock in locks], lambda part: PassHeads("*", part))

    def closed(self, scope: str | None = None) -> Iterator[ClosedKey]:
        """The closed keys of a scope (None: of all scopes), in no particular order.

        A key that changes during the listing may be listed twice.
        """
        for shard in range(self.plans.shards) if scope is None else [shard_of(scope, self.plans.shards)]:
            cursor = "0"
            while True:
                cursor, keys = self.run(self.plans.one(shard, ListKeys(scope or "", cursor)))
                yield from keys
                if cursor == "0":
                    break

    def counts(self, topics: Sequence[str]) -> tuple[int, dict[str, int]]:
        """How many keys are closed, and how many messages of each topic are parked."""
        total, parked = 0, dict.fromkeys(topics, 0)
        for shard in range(self.plans.shards):
            closed, found = self.run(self.plans.one(shard, CountParked(topics)))
            total += closed
            for topic, count in found.items():
                parked[topic] += count
        return total, parked

    def _one(self, scope: str, operation: Operation[T]) -> T:
        return self.run(self.plans.one(shard_of(scope, self.plans.shards), operation))

    def _paged(
        self, scope: str, rows: Sequence[Row], make: Callable[[Sequence[Row]], Operation[list[Outcome]]]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for at in range(0, len(rows), MAX_BATCH):
            outcomes += self._one(scope, make(rows[at : at + MAX_BATCH]))
        return outcomes

    def _by_scope(
        self, rows: Sequence[tuple[str, str]], make: Callable[[Sequence[tuple[str, str]]], Operation[list[Outcome]]]
    ) -> list[Outcome]:
        outcomes = [Outcome.ABSENT] * len(rows)
        scopes: dict[str, list[int]] = {}
        for place, (lock, _) in enumerate(rows):
            scopes.setdefault(route_of(lock), []).append(place)
        for scope, places in scopes.items():
            answers = self._paged(scope, [rows[place] for place in places], make)
            for place, outcome in zip(places, answers, strict=True):
                outcomes[place] = outcome
        return outcomes
