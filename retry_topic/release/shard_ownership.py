"""Shard ownership: which shards this process owns, and how it takes one over.

A process acquires a shard when items are due in it, or wait in it and no owner is known. The ownership lasts
`lease_ms`. While the process works on the shard, it extends the ownership. An idle owner lets the ownership lapse. A
new owner raises the shard's epoch, fences its predecessor at the broker, and reads the number of the last claim that
was sent. Then it ends the open claims. Effectively-once delivery depends on this order.

A claim belongs to the ownership in which it was made (`OwnedShard`). A shard that was lost and is acquired again is
taken over again. Open claims of an earlier ownership are never sent, and during a take-over no claim is.

Threads: the dispatcher's main thread acquires shards. A take-over runs in a separate thread, because the broker may be
slow. The publisher's threads send, at most one for each shard.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retry_topic.brokers.protocol import ClaimSender, Fenced
from wheel_sched.errors import BrokerError, BrokerUnavailable, StaleEpoch, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.shard_ownership import Own, Ownership, Resolve, Resolved

logger = logger_of("retry_topic.release")

_AGAIN_S = 0.5


@dataclass(slots=True, eq=False)
class OwnedShard:
    """One ownership of a shard by this process, from one take-over to the next."""

    epoch: int
    until_s: float
    claims: int = 0  # number of the last claim that this process knows
    committed: int = 0  # number of the last claim that was sent
    ready: bool = False  # whether the take-over has ended
    server: object = None  # identity of the store's server
    suspect: bool = False  # the store may have lost writes: end its open claims by their numbers
    refused: str | None = None  # the broker's refusal; repeating does not help until a permission is given


class ShardOwner:
    """The shards of a store that this process owns.

    Args:
        store: the delay store.
        sender: sends the claims of these shards to the broker.
        lease_ms: the time after which another process may acquire a dead process's shard.
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
        self._open: dict[int, dict[int, OwnedShard]] = defaultdict(dict)  # by shard and claim number: see `is_open`
        self._sending = [threading.Lock() for _ in range(store.shards)]
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<ShardOwner owned={sorted(shard for shard, owned in self._owned.items() if owned.ready)}>"

    def acquire(self, shard: int) -> OwnedShard | None:
        """Return the shard if this process has taken it over, else None. If needed, asks the store for the shard.

        Raises:
            StaleEpoch: the store has another epoch. The next call of `acquire` asks who owns the shard.
            StoreError: the store could not say who owns it.
        """
        with self._lock:
            owned = self._owned.get(shard)
        if owned is None or self._ends_soon(owned):
            owned = self._ask(shard)
        if owned is None or not owned.ready:
            return None
        if owned.suspect:
            try:
                self._resolve(shard, owned)
            except StaleEpoch:  # a store that has lost writes may have lost that this process owns the shard
                self.outdated(shard)
                raise
        return owned

    def is_settled(self, shard: int) -> bool:
        """Whether this process owns the shard and has ended the open claims of former owners."""
        with self._lock:
            owned = self._owned.get(shard)
            return owned is not None and owned.ready and not owned.suspect

    def is_taking_over(self, shard: int) -> bool:
        """Whether this process owns the shard and is still taking it over."""
        with self._lock:
            owned = self._owned.get(shard)
            return owned is not None and not owned.ready

    @property
    def refusals(self) -> list[str]:
        """The broker's refusals in owned shards, in its words. The messages wait until the broker accepts them."""
        with self._lock:
            return [owned.refused for owned in self._owned.values() if owned.refused is not None]

    def broker_failed(self, shard: int, error: Exception) -> None:
        """Record the error of a failed request for a shard if the broker refused the request. A repeat cannot help."""
        if isinstance(error, BrokerError) and not isinstance(error, BrokerUnavailable | Fenced):
            with self._lock:
                owned = self._owned.get(shard)
                if owned is not None:
                    owned.refused = str(error)

    def elsewhere_until_ms(self, shard: int) -> int:
        """The end of another process's ownership, by the store's clock; 0 if no other owner is known."""
        return self._elsewhere_until_ms.get(shard, 0)

    def renew(self, shard: int) -> None:
        """Extend the ownership of a shard before it ends, because the publisher works on one of its claims."""
        with self._lock:
            owned = self._owned.get(shard)
        if owned is not None and self._ends_soon(owned):
            self._try_to_ask(shard)

    def extend(self, shard: int, number: int) -> bool:
        """Extend the ownership of a shard for a claim. Returns False if the claim is of an earlier ownership.

        Raises:
            StoreError: the store could not say who owns the shard.
        """
        with self._lock:
            known = shard in self._owned
        owned = self._ask(shard) if known else None
        with self._lock:
            return owned is not None and self._open[shard].get(number) is owned

    def outdated(self, shard: int) -> None:
        """Record that the epoch of a shard has changed. The next `acquire` asks the store who owns the shard."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.until_s = 0.0

    def _ends_soon(self, owned: OwnedShard) -> bool:
        return owned.until_s - time.monotonic() < self._lease_ms / 1500

    def prepare(self, shard: int) -> None:
        """Acquire a shard before its waiting items are due, if it has no known owner."""
        with self._lock:
            known = shard in self._owned or shard in self._elsewhere_until_ms
        if not known:
            self._try_to_ask(shard)

    @contextlib.contextmanager
    def sending(self, shard: int, number: int) -> Iterator[bool]:
        """Yield whether a claim may be sent now. A take-over of the shard by this process waits for the block's end.

        A claim is sent only after the results of all claims with lower numbers are known, because the number of a sent
        claim says that all lower claims were sent too.
        """
        with self._sending[shard]:
            with self._lock:
                ours = self._ours(shard, self._owned.get(shard))
            yield number == min(ours, default=None)

    def lost(self, shard: int, number: int) -> None:
        """Record that another process fenced our producer while the producer sent a claim."""
        with self._lock:
            self._drop(shard, self._open[shard].get(number))

    def confirmed(self, shard: int, number: int) -> bool:
        """Whether the store still names this process as owner of a claim's shard. First call `ClaimSender.take_over`.

        A new owner acquires the shard in the store before it calls `take_over`. If the store names us now, each later
        owner calls `take_over` after us: it fences us, then reads which claims were sent, and misses no claim of ours.
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
        """Give up a claim whose result is unknown. The shard is taken over again, which finds out the result."""
        with self._lock:
            self._drop(shard, self._open[shard].pop(number, None))

    def suspect(self) -> None:
        """Record that the store did not answer and may have lost writes: `acquire` checks the open claims again."""
        with self._lock:
            for owned in self._owned.values():
                owned.suspect = True

    def check_server(self) -> None:
        """Check if the store's server has changed. It may then lack writes: `acquire` checks the open claims again."""
        with self._lock:
            known = [owned for owned in self._owned.values() if owned.ready]
        if known:
            self._compare_server(known)

    def opened(self, shard: int, number: int, owned: OwnedShard) -> None:
        """Record that a claim made in this ownership goes to the publisher."""
        with self._lock:
            self._open[shard][number] = owned
            owned.claims = max(owned.claims, number)

    def last_number(self, shard: int, owned: OwnedShard) -> int:
        """The greatest claim number that this process knows. The next one is greater, even after lost writes."""
        with self._lock:
            return max(owned.committed, owned.claims, *self._open[shard], 0)

    def closed(self, shard: int, number: int) -> None:
        """Close a claim: its publisher knows whether it was sent."""
        with self._lock:
            self._open[shard].pop(number, None)
            if (owned := self._owned.get(shard)) is not None:
                owned.refused = None

    def is_open(self, shard: int, number: int) -> bool:
        """Whether the publisher still waits for the result of a claim."""
        with self._lock:
            return number in self._open[shard]

    def committed(self, shard: int, number: int) -> None:
        """Record that a claim was sent."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.committed = max(owned.committed, number)

    def refresh(self) -> None:
        """Send claim numbers again before the broker forgets them. Runs in a publisher's thread.

        It sends nothing while a claim is open: the broker may have that claim's number already, and an earlier number
        would replace it.
        """
        for shard, owned in list(self._owned.items()):
            sending = self._sending[shard]
            if not self._sender.stale(shard) or not sending.acquire(blocking=False):  # another thread is sending
                continue
            try:
                with self._lock:
                    idle = owned.ready and self._owned.get(shard) is owned and not self._ours(shard, owned)
                if idle and self._sender.stale(shard):
                    self._sender.send(shard, owned.committed, [])
            finally:
                sending.release()

    def close(self) -> None:
        """Give up all shards, so that another process can acquire them immediately. Idempotent."""
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
                if owned.ready:
                    self._compare_server([owned])
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

    def _try_to_ask(self, shard: int) -> None:
        try:
            self._ask(shard)
        except WheelSchedError as error:
            logger.info("ownership.not_extended: %s", error)

    def _compare_server(self, shards: Sequence[OwnedShard]) -> None:
        identity = self._store.backend.identity()
        for owned in shards:
            owned.suspect = owned.suspect or owned.server != identity
            owned.server = identity

    # -- taking over; in its own thread

    def _take_over(self, shard: int, owned: OwnedShard) -> None:
        while not self._closed.is_set() and self._owned.get(shard) is owned and not self.take_over_once(shard, owned):
            self._closed.wait(_AGAIN_S)
            self.renew(shard)

    def take_over_once(self, shard: int, owned: OwnedShard) -> bool:
        """Try once to take a shard over. Returns False if store or broker did not answer: repeat the call."""
        try:
            with self._sending[shard]:
                owned.server = self._store.backend.identity()
                number = self._sender.take_over(shard)
                self._settle_open(shard, owned, number)
                owned.ready, owned.refused = True, None
            logger.info("ownership.taken_over: shard %d, epoch %d, claim %s", shard, owned.epoch, number)
        except StaleEpoch:
            with self._lock:
                self._drop(shard, owned)
        except Exception as error:
            self.broker_failed(shard, error)
            if not isinstance(error, WheelSchedError):
                logger.exception("ownership.take_over_failed")
            else:
                logger.warning("ownership.take_over_waits: shard %d: %s", shard, error)
            return False
        return True

    def _settle_open(self, shard: int, owned: OwnedShard, number: int | None) -> None:
        counts = self._store.counts_by_shard()[shard]
        if number is None and counts.total("leased") == 0:
            # the broker knows no number, and no claim is in doubt: begin with the store's number
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
                    "ownership.in_doubt: shard %d: %d messages are held: the broker does not know which claims were "
                    "sent; release or delete them by hand",
                    shard,
                    resolved.held,
                )
            if resolved.completed or resolved.released:
                logger.info(
                    "ownership.resolved: shard %d: %d messages of open claims were sent, %d were not",
                    shard,
                    resolved.completed,
                    resolved.released,
                )
            if not resolved.more:
                return

    def _spared(self, shard: int, owned: OwnedShard) -> int | None:
        """Forget our open claims except the first, so that they are not sent. Returns the first one's number, or None.

        `_resolve` then ends the forgotten claims; their items wait again. The first may be in flight: it stays open."""
        with self._lock:
            ours = self._ours(shard, owned)
            for number in ours[1:]:
                del self._open[shard][number]
        return ours[0] if ours else None

    def _ours(self, shard: int, owned: OwnedShard | None) -> list[int]:
        """The open claims that were made in an ownership, in order of their numbers."""
        return sorted(number for number, under in self._open[shard].items() if under is owned)

    def _drop(self, shard: int, owned: OwnedShard | None) -> None:
        if owned is not None and self._owned.get(shard) is owned:
            del self._owned[shard]
