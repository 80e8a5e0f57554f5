"""Shard ownership: which shards this process owns, and how it takes one over.

A process acquires a shard on demand, when something is due in it, for `lease_ms`, and extends that while it works on
the shard; an idle owner lets it lapse. A new owner raises the shard's epoch, fences its predecessor at the broker,
reads the number of the last claim that went out, and only then ends the open claims: effectively-once delivery depends
on this order.

A claim belongs to the ownership that it was made under (`OwnedShard`). When the shard was lost and acquired anew, by
whichever process, open claims of the earlier ownership are not sent any more. Nothing is sent for a shard while it is
being taken over.

Threads: the dispatcher's owner acquires; a take-over runs in a thread of its own, since the broker may take its time;
the publisher's threads send, one for a shard at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from retry_topic.brokers.protocol import ClaimSender, Fenced
from wheel_sched.errors import BrokerError, BrokerUnavailable, StaleEpoch, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.shard_ownership.operations import Own, Ownership, Resolve, Resolved

logger = logger_of("retry_topic.release")

_AGAIN_S = 0.5


@dataclass(slots=True, eq=False)
class OwnedShard:
    """A shard of this process, from one take-over to the next."""

    epoch: int
    until_s: float
    claims: int = 0  # number of the last claim that was made
    committed: int = 0  # number of the last claim that went out
    ready: bool = False  # taken over
    server: object = None  # identity of the store's server
    suspect: bool = False  # the store may have lost writes since: its open claims have to be ended by their number
    refused: str | None = None  # why the broker does not let us: repeating it changes nothing until a right is given


class ShardOwner:
    """The shards of a store that this process owns.

    Args:
        store: the delay store.
        sender: sends their claims to the broker.
        lease_ms: how soon another process may acquire a dead one's shard.
        lapse_cap: see `DispatcherConfig`.
    """

    def __init__(self, store: DelayStore, sender: ClaimSender, *, lease_ms: int, lapse_cap: int) -> None:
        self.name = uuid.uuid4().hex
        self._store = store
        self._sender = sender
        self._lease_ms = lease_ms
        self._lapse_cap = lapse_cap
        self._owned: dict[int, OwnedShard] = {}
        self._elsewhere_until_ms: dict[int, int] = {}
        self._open: dict[int, dict[int, OwnedShard]] = defaultdict(
            dict
        )  # claims whose fate the publisher does not know
        self._sending = [threading.Lock() for _ in range(store.shards)]
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<ShardOwner owned={sorted(shard for shard, owned in self._owned.items() if owned.ready)}>"

    def acquire(self, shard: int) -> OwnedShard | None:
        """A shard that is ours and taken over; else None, and the shard is asked for when nobody is known to own it.

        Raises:
            StoreError: the store could not say who owns it.
        """
        with self._lock:
            owned = self._owned.get(shard)
        if owned is None or self._ends_soon(owned):
            owned = self._ask(shard)
        if owned is None or not owned.ready:
            return None
        if owned.suspect:
            self._resolve(shard, owned)
        return owned

    def is_settled(self, shard: int) -> bool:
        """Whether the shard is ours, and the claims that others left open in it are ended."""
        with self._lock:
            owned = self._owned.get(shard)
            return owned is not None and owned.ready and not owned.suspect

    def is_taking_over(self, shard: int) -> bool:
        """Whether the shard is ours, and is being taken over."""
        with self._lock:
            owned = self._owned.get(shard)
            return owned is not None and not owned.ready

    @property
    def refusals(self) -> list[str]:
        """What the broker refuses us in shards of ours, in its words; their messages wait until it does not."""
        with self._lock:
            return [owned.refused for owned in self._owned.values() if owned.refused is not None]

    def broker_failed(self, shard: int, error: Exception) -> None:
        """The broker has not done what it was asked for a shard."""
        if isinstance(error, BrokerError) and not isinstance(error, BrokerUnavailable | Fenced):
            with self._lock:
                owned = self._owned.get(shard)
                if owned is not None:
                    owned.refused = str(error)

    def elsewhere_until_ms(self, shard: int) -> int:
        """Until when another process owns it, by the store's clock; 0 when none is known to."""
        return self._elsewhere_until_ms.get(shard, 0)

    def renew(self, shard: int) -> None:
        """Extend the ownership of a shard before it ends; the publisher works on one of its claims."""
        with self._lock:
            owned = self._owned.get(shard)
        if owned is not None and self._ends_soon(owned):
            try:
                self._ask(shard)
            except WheelSchedError as error:
                logger.info("ownership.not_extended: %s", error)

    def extend(self, shard: int, number: int) -> bool:
        """Extend the ownership of a shard for a claim; False: it is not the ownership that the claim was made under.

        Raises:
            StoreError: the store could not say who owns the shard.
        """
        with self._lock:
            known = shard in self._owned
        owned = self._ask(shard) if known else None
        with self._lock:
            return owned is not None and self._open[shard].get(number) is owned

    def outdated(self, shard: int) -> None:
        """The epoch of a shard has moved on: ask who owns it before anything else."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.until_s = 0.0

    def _ends_soon(self, owned: OwnedShard) -> bool:
        return owned.until_s - time.monotonic() < self._lease_ms / 1500

    def prepare(self, shard: int) -> None:
        """Something waits in a shard: acquire it before that is due, if nobody is known to own it."""
        with self._lock:
            known = shard in self._owned or shard in self._elsewhere_until_ms
        if not known:
            try:
                self._ask(shard)
            except WheelSchedError as error:
                logger.info("ownership.not_prepared: %s", error)

    @contextlib.contextmanager
    def sending(self, shard: int, number: int) -> Iterator[bool]:
        """Whether a claim may be sent now. While it is sent, this process does not take the shard over.

        A claim is not sent before it is known what became of the claims with lower numbers, because its own number
        would say that they went out.
        """
        with self._sending[shard]:
            with self._lock:
                owned = self._owned.get(shard)
                ours = [number for number, under in self._open[shard].items() if under is owned]
            yield number == min(ours, default=None)

    def lost(self, shard: int, number: int) -> None:
        """Another process has fenced our producer while it sent a claim."""
        with self._lock:
            self._drop(shard, self._open[shard].get(number))

    def confirmed(self, shard: int, number: int) -> bool:
        """Whether the store says that a claim's shard is still ours. Asked after our producer has fenced all others.

        In this order, because a new owner acquires the shard first and fences us then. If the shard is ours now, a
        later owner fences us before it looks at what went out.
        """
        answer: Ownership = self._execute(shard, Own(self.name, self._lease_ms))
        with self._lock:
            owned = self._open[shard].get(number)
            ours = bool(
                answer.mine
                and not answer.new
                and owned is not None
                and owned is self._owned.get(shard)
                and owned.epoch == answer.epoch
            )
            if not ours:
                self._drop(shard, owned)
        return ours

    def abandon(self, shard: int, number: int) -> None:
        """This process does not know what became of a claim: a new take-over of the shard finds it out."""
        with self._lock:
            self._drop(shard, self._open[shard].pop(number, None))

    def suspect(self) -> None:
        """The store did not answer: it may be another one now, or an earlier state of it."""
        with self._lock:
            for owned in self._owned.values():
                owned.suspect = True

    def check_server(self) -> None:
        """Whether the store's server is still the same; claims of another one are suspect."""
        with self._lock:
            known = [owned for owned in self._owned.values() if owned.ready]
        if known:
            identity = self._store.backend.identity()
            for owned in known:
                owned.suspect = owned.suspect or owned.server != identity
                owned.server = identity

    def opened(self, shard: int, number: int, owned: OwnedShard) -> None:
        """A claim that was made under an ownership goes to the publisher."""
        with self._lock:
            self._open[shard][number] = owned
            owned.claims = max(owned.claims, number)

    def last_number(self, shard: int, owned: OwnedShard) -> int:
        """The greatest claim number known here; the next one is above it, whatever the store has forgotten."""
        with self._lock:
            return max(owned.committed, owned.claims, *self._open[shard], 0)

    def closed(self, shard: int, number: int) -> None:
        """The publisher knows what became of a claim."""
        with self._lock:
            self._open[shard].pop(number, None)
            if (owned := self._owned.get(shard)) is not None:
                owned.refused = None

    def is_open(self, shard: int, number: int) -> bool:
        """Whether the publisher does not know yet what became of a claim."""
        with self._lock:
            return number in self._open[shard]

    def committed(self, shard: int, number: int) -> None:
        """A claim went out."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.committed = max(owned.committed, number)

    def refresh(self) -> None:
        """Send numbers again that the broker would forget otherwise; in a publisher's thread."""
        for shard, owned in list(self._owned.items()):
            sending = self._sending[shard]
            if not self._sender.stale(shard) or not sending.acquire(blocking=False):  # somebody is at it
                continue
            try:
                if owned.ready and self._owned.get(shard) is owned and self._sender.stale(shard):
                    self._sender.send(shard, owned.committed, [])
            finally:
                sending.release()

    def close(self) -> None:
        """Give all shards up, so that another process can acquire them at once. Idempotent."""
        self._closed.set()
        with self._lock:
            shards, self._owned = list(self._owned), {}
        if shards:
            self._store.execute([Call(shard, Own(self.name, 0)) for shard in shards])

    def _ask(self, shard: int) -> OwnedShard | None:
        asked_s = time.monotonic()
        ownership: Ownership = self._execute(shard, Own(self.name, self._lease_ms))
        with self._lock:
            if self._closed.is_set():
                return None
            owned = self._owned.get(shard)
            if not ownership.mine:
                if owned is not None:
                    logger.warning("ownership.lost: shard %d is another process's now", shard)
                    del self._owned[shard]
                self._elsewhere_until_ms[shard] = ownership.until_ms
                return None
            self._elsewhere_until_ms.pop(shard, None)
            until_s = asked_s + self._lease_ms / 1000
            if owned is not None and not ownership.new:
                owned.until_s, owned.epoch = until_s, ownership.epoch
                self._renewed(owned)
                return owned
            owned = self._owned[shard] = OwnedShard(ownership.epoch, until_s, claims=ownership.claims)
        threading.Thread(target=self._take_over, args=(shard, owned), name=f"take-over-{shard}", daemon=True).start()
        return owned

    def _execute(self, shard: int, operation: Own) -> Ownership:
        (answer,) = self._store.execute([Call(shard, operation)])
        if isinstance(answer, Exception):
            raise answer
        ownership: Ownership = answer
        return ownership

    def _renewed(self, owned: OwnedShard) -> None:
        if owned.ready:
            identity = self._store.backend.identity()
            owned.suspect = owned.suspect or owned.server != identity
            owned.server = identity

    # -- taking over; in a thread of its own

    def _take_over(self, shard: int, owned: OwnedShard) -> None:
        while not self._closed.is_set() and self._owned.get(shard) is owned:
            try:
                with self._sending[shard]:
                    owned.server = self._store.backend.identity()
                    number = self._sender.take_over(shard)
                    self._settle_open(shard, owned, number)
                    owned.ready, owned.refused = True, None
                logger.info("ownership.taken_over: shard %d, epoch %d, claim %s", shard, owned.epoch, number)
                return
            except StaleEpoch:
                with self._lock:
                    self._drop(shard, owned)
                return
            except Exception as error:
                self.broker_failed(shard, error)
                if not isinstance(error, WheelSchedError):
                    logger.exception("ownership.take_over_failed")
                else:
                    logger.warning("ownership.take_over_waits: shard %d: %s", shard, error)
            self._closed.wait(_AGAIN_S)
            self.renew(shard)

    def _settle_open(self, shard: int, owned: OwnedShard, number: int | None) -> None:
        counts = self._store.counts_by_shard()[shard]
        if number is None and counts.total("fly") == 0:
            # the very first owner, or no claim is open: from here on the broker has a number
            number = owned.claims
        owned.committed = number or 0
        self._resolve(shard, owned, known=number is not None)
        owned.committed = owned.claims if number is None else number
        self._sender.send(shard, owned.committed, [])

    def _resolve(self, shard: int, owned: OwnedShard, *, known: bool = True) -> None:
        owned.suspect = False
        spared = self._spared(shard, owned)
        while True:
            resolve = Resolve(owned.epoch, owned.committed if known else None, spared, self._lapse_cap)
            (answer,) = self._store.execute([Call(shard, resolve)])
            if isinstance(answer, Exception):
                owned.suspect = True
                raise answer
            resolved: Resolved = answer
            if resolved.held:
                logger.error(
                    "ownership.in_doubt: shard %d: %d messages are held: the broker forgot which claims went out; "
                    "release or delete them by hand",
                    shard,
                    resolved.held,
                )
            if resolved.completed or resolved.released:
                logger.info(
                    "ownership.resolved: shard %d: %d had gone out, %d had not",
                    shard,
                    resolved.completed,
                    resolved.released,
                )
            if not resolved.more:
                return

    def _spared(self, shard: int, owned: OwnedShard) -> int | None:
        """The claim that may be on its way now. Our claims behind it are released, and not sent."""
        with self._lock:
            held = self._open[shard]
            ours = sorted(number for number, under in held.items() if under is owned)
            for number in ours[1:]:
                del held[number]
        return ours[0] if ours else None

    def _drop(self, shard: int, owned: OwnedShard | None) -> None:
        if owned is not None and self._owned.get(shard) is owned:
            del self._owned[shard]
