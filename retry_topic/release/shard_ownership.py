"""Which shards this process owns, and the take-over of one.

A shard is owned on demand: when something is due in it, for `lease_ms`, and for longer while it is worked on; an idle
owner lets it lapse. A new owner raises the shard's epoch, fences its predecessor at the broker, reads the number of the
last claim that went out, and only then ends what was open: GUARANTEES of effectively-once delivery depend on the order.

A claim belongs to the tenure it was made in: when the shard was lost and taken over anew, by whomever, what is left of
the tenure before goes nowhere any more. Nobody sends for a shard while it is being taken over.

Threads: the dispatcher's owner asks; a take-over runs in a thread of its own, since the broker may take its time; the
publisher's threads send, one for a shard at a time.
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
from wheel_sched.store.items import Ownership, Resolved
from wheel_sched.store.operations import Call, Own, Resolve

logger = logger_of("retry_topic.owning")

_AGAIN_S = 0.5


@dataclass(slots=True, eq=False)
class Owned:
    """A shard of this process, from one take-over to the next."""

    epoch: int
    until_s: float
    claims: int = 0  # the last that was made
    committed: int = 0  # the last that went out
    ready: bool = False
    identity: object = None
    suspect: bool = False  # the store may have lost writes since: its open claims are to be looked at
    refused: str | None = None  # why the broker does not let us: repeating it changes nothing until a right is given


class Shards:
    """The shards of a store, as far as they are this process's.

    Args:
        store: the store itself.
        sender: what sends their claims.
        lease_ms: how soon another process may take a dead one's shard.
        lapse_cap: see `DispatcherConfig`.
    """

    def __init__(self, store: DelayStore, sender: ClaimSender, *, lease_ms: int, lapse_cap: int) -> None:
        self.name = uuid.uuid4().hex
        self._store = store
        self._sender = sender
        self._lease_ms = lease_ms
        self._lapse_cap = lapse_cap
        self._owned: dict[int, Owned] = {}
        self._elsewhere_until_ms: dict[int, int] = {}
        self._open: dict[int, dict[int, Owned]] = defaultdict(dict)  # claims in the publisher's hands
        self._sending = [threading.Lock() for _ in range(store.shards)]
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<Shards owned={sorted(shard for shard, owned in self._owned.items() if owned.ready)}>"

    def owned(self, shard: int) -> Owned | None:
        """A shard that is ours and taken over; asks for it when it is not."""
        with self._lock:
            owned = self._owned.get(shard)
        if owned is None or owned.until_s - time.monotonic() < self._lease_ms / 1500:
            owned = self._ask(shard)
        if owned is None or not owned.ready:
            return None
        if owned.suspect:
            self._resolve(shard, owned)
        return owned

    def settled(self, shard: int) -> bool:
        """Whether it is ours, and what others left open in it is ended."""
        with self._lock:
            owned = self._owned.get(shard)
            return owned is not None and owned.ready and not owned.suspect

    @property
    def refusals(self) -> list[str]:
        """What the broker refuses us in shards of ours, in its words; they wait until it does not."""
        with self._lock:
            return [owned.refused for owned in self._owned.values() if owned.refused is not None]

    def failed(self, shard: int, error: Exception) -> None:
        """The broker has not done what was asked of it for a shard."""
        if isinstance(error, BrokerError) and not isinstance(error, BrokerUnavailable | Fenced):
            with self._lock:
                owned = self._owned.get(shard)
                if owned is not None:
                    owned.refused = str(error)

    def elsewhere_until_ms(self, shard: int) -> int:
        """Until when another process owns it, by the store's clock; 0 when none is known to."""
        return self._elsewhere_until_ms.get(shard, 0)

    def renew(self, shard: int) -> None:
        """A claim of it is being worked on."""
        with self._lock:
            owned = self._owned.get(shard)
        if owned is not None and owned.until_s - time.monotonic() < self._lease_ms / 1500:
            try:
                self._ask(shard)
            except WheelSchedError as error:
                logger.info("owning.not_renewed: %s", error)

    def drop(self, shard: int) -> None:
        """Its epoch has moved on: ask again before anything else."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.until_s = 0.0

    def prepare(self, shard: int) -> None:
        """Something waits in it: take it over before that is due, if nobody has it."""
        with self._lock:
            known = shard in self._owned or shard in self._elsewhere_until_ms
        if not known:
            try:
                self._ask(shard)
            except WheelSchedError as error:
                logger.info("owning.not_prepared: %s", error)

    @contextlib.contextmanager
    def sending(self, shard: int, number: int) -> Iterator[bool]:
        """Whether a claim may be sent: then the shard is not taken over meanwhile, by this process at least.

        Not before it is known what became of those with lower numbers: its own would say that they went out.
        """
        with self._sending[shard]:
            with self._lock:
                owned = self._owned.get(shard)
                ours = [number for number, tenure in self._open[shard].items() if tenure is owned]
            yield number == min(ours, default=None)

    def lost(self, shard: int, number: int) -> None:
        """Somebody else's producer has fenced the one that sent a claim."""
        with self._lock:
            self._drop(shard, self._open[shard].get(number))

    def confirmed(self, shard: int, number: int) -> bool:
        """Whether a claim's shard is still ours by the store's word, asked after our producer has fenced all others.

        In this order, because whoever takes it over asks the store first and fences then: if it is ours now, they will
        fence us before they look at what went out.
        """
        (answer,) = self._store.execute([Call(shard, Own(self.name, self._lease_ms))])
        if isinstance(answer, Exception):
            raise answer
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
        """Nobody here knows what became of a claim: it is found out by taking the shard over anew."""
        with self._lock:
            self._drop(shard, self._open[shard].pop(number, None))

    def suspect(self) -> None:
        """The store was away: it may be another one, or an earlier state of it."""
        with self._lock:
            for owned in self._owned.values():
                owned.suspect = True

    def look(self) -> None:
        """Whether the store's server is still the one it was."""
        with self._lock:
            known = [owned for owned in self._owned.values() if owned.ready]
        if known:
            identity = self._store.backend.identity()
            for owned in known:
                owned.suspect = owned.suspect or owned.identity != identity
                owned.identity = identity

    def opened(self, shard: int, number: int, owned: Owned) -> None:
        """A claim goes to the publisher; it was made while the shard was ours in this way."""
        with self._lock:
            self._open[shard][number] = owned
            owned.claims = max(owned.claims, number)

    def above(self, shard: int, owned: Owned) -> int:
        """What the next claim's number is above, also when the store has forgotten those that it gave out."""
        with self._lock:
            return max(owned.committed, owned.claims, *self._open[shard], 0)

    def closed(self, shard: int, number: int) -> None:
        """The publisher has said what became of a claim."""
        with self._lock:
            self._open[shard].pop(number, None)
            if (owned := self._owned.get(shard)) is not None:
                owned.refused = None

    def is_open(self, shard: int, number: int) -> bool:
        """Whether the publisher has yet to say what became of a claim."""
        with self._lock:
            return number in self._open[shard]

    def committed(self, shard: int, number: int) -> None:
        """A claim went out."""
        with self._lock:
            owned = self._owned.get(shard)
            if owned is not None:
                owned.committed = max(owned.committed, number)

    def refresh(self) -> None:
        """Commit again what would be forgotten otherwise; in a publisher's thread."""
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
        """Give all shards up, so that another process has them at once."""
        self._closed.set()
        with self._lock:
            shards, self._owned = list(self._owned), {}
        if shards:
            self._store.execute([Call(shard, Own(self.name, 0)) for shard in shards])

    def _ask(self, shard: int) -> Owned | None:
        asked_s = time.monotonic()
        (answer,) = self._store.execute([Call(shard, Own(self.name, self._lease_ms))])
        if isinstance(answer, Exception):
            raise answer
        ownership: Ownership = answer
        with self._lock:
            if self._closed.is_set():
                return None
            owned = self._owned.get(shard)
            if not ownership.mine:
                if owned is not None:
                    logger.warning("owning.lost: shard %d is another process's now", shard)
                    del self._owned[shard]
                self._elsewhere_until_ms[shard] = ownership.until_ms
                return None
            self._elsewhere_until_ms.pop(shard, None)
            until_s = asked_s + self._lease_ms / 1000
            if owned is not None and not ownership.new:
                owned.until_s, owned.epoch = until_s, ownership.epoch
                self._renewed(owned)
                return owned
            owned = self._owned[shard] = Owned(ownership.epoch, until_s, claims=ownership.claims)
        threading.Thread(target=self._take_over, args=(shard, owned), name=f"take-over-{shard}", daemon=True).start()
        return owned

    def _renewed(self, owned: Owned) -> None:
        if owned.ready:
            identity = self._store.backend.identity()
            owned.suspect = owned.suspect or owned.identity != identity
            owned.identity = identity

    # -- taking over; in a thread of its own

    def _take_over(self, shard: int, owned: Owned) -> None:
        while not self._closed.is_set() and self._owned.get(shard) is owned:
            try:
                with self._sending[shard]:
                    owned.identity = self._store.backend.identity()
                    number = self._sender.take_over(shard)
                    self._settle_open(shard, owned, number)
                    owned.ready, owned.refused = True, None
                logger.info("owning.taken_over: shard %d, epoch %d, claim %s", shard, owned.epoch, number)
                return
            except StaleEpoch:
                with self._lock:
                    self._drop(shard, owned)
                return
            except Exception as error:
                self.failed(shard, error)
                if not isinstance(error, WheelSchedError):
                    logger.exception("owning.take_over_failed")
                else:
                    logger.warning("owning.take_over_waits: shard %d: %s", shard, error)
            self._closed.wait(_AGAIN_S)
            self.renew(shard)

    def _settle_open(self, shard: int, owned: Owned, number: int | None) -> None:
        counts = self._store.counts_by_shard()[shard]
        if number is None and counts.total("fly") == 0:
            # the very first owner, or nothing at stake: from here on there is a number to go by
            number = owned.claims
        owned.committed = number or 0
        self._resolve(shard, owned, known=number is not None)
        owned.committed = owned.claims if number is None else number
        self._sender.send(shard, owned.committed, [])

    def _resolve(self, shard: int, owned: Owned, *, known: bool = True) -> None:
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
                    "owning.in_doubt: shard %d: %d messages are held, the broker has forgotten which claims went out; "
                    "release or delete them by hand",
                    shard,
                    resolved.held,
                )
            if resolved.completed or resolved.released:
                logger.info(
                    "owning.resolved: shard %d: %d had gone out, %d had not",
                    shard,
                    resolved.completed,
                    resolved.released,
                )
            if not resolved.more:
                return

    def _spared(self, shard: int, owned: Owned) -> int | None:
        """The claim that may be on its way now; those behind it are given back with all others, and not sent."""
        with self._lock:
            held = self._open[shard]
            ours = sorted(number for number, tenure in held.items() if tenure is owned)
            for number in ours[1:]:
                del held[number]
        return ours[0] if ours else None

    def _drop(self, shard: int, owned: Owned | None) -> None:
        if owned is not None and self._owned.get(shard) is owned:
            del self._owned[shard]
