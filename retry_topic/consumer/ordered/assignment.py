"""PartitionAssignment: the time in which one reader reads an ordered partition, until its regular end or its loss.

Some brokers assign no partitions. Then one consumer of the group leases the whole topic (`leased_topic`), and this
module treats that topic as one partition.

The assignment holds the deliveries that were read and are not settled, and renews them at the broker. Under a lease in
the store, it owns the *scope*: the name under which the store keeps the locks of the partition's keys. The next owner
of the scope gets a greater epoch. Then the store refuses all later calls of the former owner. So the order does not
depend on how soon a reader notices that it has lost the partition.

A key is *closed* while a failed message of it waits for its retry: later messages of the key are parked. When the
reader owns the scope, it reads from the store which keys are closed. Deliveries that come earlier wait until then.
"""

from __future__ import annotations

import contextlib
import secrets as random_bytes
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.connection import Connection
from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.ordered.key_heads import Give
from retry_topic.consumer.ordered.key_queues import KeyQueues
from retry_topic.consumer.outcome import FailureLog
from retry_topic.consumer.settling import InFlightDeliveries, Settler, Successes
from retry_topic.history import HistoryWriter
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.ordering import OrderedKeys, Owner

logger = logger_of("retry_topic.consumer")


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What all assignments of one reader have in common.

    Args:
        connection: the connection (store and broker).
        topic: the topic that is read.
        group: the consumer group.
        config: see `ConsumerConfig`.
        stats: the consumer's counters.
        give: hands a delivery to the handlers.
        history: gets a row for each success after a failure. Defaults to None.
        failure_log: gets each message that cannot be parked. Defaults to None.
    """

    connection: Connection
    topic: str
    group: str
    config: ConsumerConfig
    stats: ConsumerStats
    give: Give
    history: HistoryWriter | None = None
    failure_log: FailureLog | None = None


def new_holder() -> str:
    """A new name for an owner of partitions in the store (`holder`). No other process has the same name."""
    return f"{socket.gethostname()[:60]}-{random_bytes.token_hex(8)}"


class PartitionAssignment:
    """The time in which one reader reads one ordered partition, or a whole topic that it has leased; see the module.

    Args:
        context: what all assignments of its reader have in common.
        consumer: the broker consumer that reads the records.
        scope: the name under which the store keeps the locks of the partition's keys.
        holder: the name under which the scope is owned; no two assignments share one.
        lease_s: the length of the lease.
        patience_s: the assignment is lost when the reader could not renew the lease for this time. Defaults to None: it
            is lost only when the store names another owner.
        topic_id: the permanent id of the topic, for the ids of its messages. Defaults to the topic's name.
        changed: notified whenever deliveries are settled. Defaults to a new condition.
    """

    def __init__(
        self,
        context: ReaderContext,
        consumer: BrokerConsumer,
        scope: str,
        holder: str,
        lease_s: float,
        *,
        patience_s: float | None = None,
        topic_id: str | None = None,
        changed: threading.Condition | None = None,
    ) -> None:
        self._context = context
        self._locks = OrderedKeys(context.connection.store)
        self._scope = scope
        self._holder = holder
        self._lease_s = lease_s
        self._patience_s = patience_s
        self._topic_id = topic_id
        self.lost = threading.Event()
        self.renewed = time.monotonic()  # when the current lease was requested
        self.in_flight = InFlightDeliveries(context.config.idle_ms, changed)
        self._settler = Settler(
            context.connection.broker,
            consumer,
            self.in_flight,
            context.stats,
            context.config.idle_ms,
            context.history,
            Successes(context.connection.store),
            in_order=True,
        )
        self._queues: KeyQueues | None = None
        self._early: list[Delivery] = []  # deliveries that came before the scope was owned
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._settling = self._thread(self._settler.run, "settle", self._settler.finishing)
        self._holding: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "owned" if self._queues is not None else "waiting"
        return f"<PartitionAssignment {self._context.topic} {self._scope} {state} in_flight={len(self.in_flight)}>"

    def begin(self, epoch: int, asked: float) -> None:
        """Begin the assignment. The reader has already acquired the scope (the partition's key locks in the store).

        Args:
            epoch: the number of this ownership of the scope.
            asked: when the reader asked for the lease, by `time.monotonic`.
        """
        self._owned(epoch, asked)
        self._holding = self._thread(lambda: self._hold(epoch), "hold", self._over)

    def begin_when_free(self) -> None:
        """Begin the assignment in a thread, as soon as this reader owns the scope (the partition's key locks).

        Deliveries that are added earlier wait.
        """

        def wait_and_hold() -> None:
            epoch = self._own()
            if epoch:
                self._hold(epoch)

        self._holding = self._thread(wait_and_hold, "hold", self._over)

    def add(self, delivery: Delivery) -> None:
        """Add a delivery that was read. A record that is already in flight is not handled twice."""
        if self.in_flight.add(delivery):
            with self._lock:
                if self._queues is None:
                    self._early.append(delivery)
                else:
                    self._queues.arrived(delivery)

    def lose(self) -> None:
        """Forget the partition's deliveries, because another reader has the partition, or may soon have it."""
        self.lost.set()
        self.in_flight.drop_all()

    def end(self, until: float) -> bool:
        """End the assignment: wait for running handlers until `until` (`time.monotonic`), and settle their deliveries.

        Returns whether all deliveries are settled and the partition was not lost, see `lose`. Deliveries that waited
        for the scope do not count.
        """
        with self._lock:
            if self._queues is None:  # the scope was never owned: another reader gets the waiting deliveries
                self._over.set()
                self.in_flight.drop_all()
        self.in_flight.wait_until_at_most(0, max(0.0, until - time.monotonic()))
        left_s = max(0.0, until - time.monotonic())
        if self._queues is not None:
            self._queues.finish(left_s + 1)
        self._settler.finish()
        self._settling.join(left_s + 5)
        empty = len(self.in_flight) == 0 and not self.lost.is_set()
        self._over.set()
        self.in_flight.drop_all()
        if self._holding is not None:
            self._holding.join(5)
        return empty

    def leave(self) -> None:
        """Give up the scope (the partition's key locks in the store), so that another reader can own it now.

        If the call fails, the scope becomes free when the lease ends.
        """
        self._over.set()
        with contextlib.suppress(StoreError):
            self._locks.release(self._scope, self._holder)

    def _own(self) -> int:
        """Wait until this reader owns the scope (the partition's key locks in the store).

        Returns the epoch, the number of this ownership; 0 when the assignment is over or lost.
        """
        pause_s = 0.0
        while not self._over.wait(pause_s) and not self.lost.is_set():
            asked = time.monotonic()
            try:
                owned = self._locks.acquire(self._scope, self._holder, int(self._lease_s * 1000))
                if owned.epoch:
                    self._owned(owned.epoch, asked)
                    if self._over.is_set():  # set during the call: `leave` may have run before the scope was owned
                        self._locks.release(self._scope, self._holder)
                    return owned.epoch
                pause_s = min(owned.for_ms / 1000 + 0.01, self._lease_s / 8, 1.0)
            except Exception as error:  # the records wait, whatever the error is
                logger.warning("consumer.cannot_own: %s", error)
                pause_s = 1.0
        return 0

    def _owned(self, epoch: int, asked: float) -> None:
        context, self.renewed = self._context, asked
        closed = [key.lock for key in self._locks.closed(self._scope)]
        queues = KeyQueues(
            self._locks,
            Owner(self._scope, self._holder, epoch),
            closed,
            group=context.group,
            secrets=context.config.secrets,
            parked_cap=context.config.parked_cap,
            give=context.give,
            sink=self._settler,
            lost=self.lost,
            fair_keys=context.connection.fair_keys,
            topic_id=self._topic_id,
            topics=context.config.group_topics,
            failure_log=context.failure_log,
        )
        with self._lock:
            if self._over.is_set():
                return
            queues.start(f"{context.group}-keys-{context.topic}")
            self._queues = queues
            for delivery in self._early:
                queues.arrived(delivery)
            self._early.clear()

    def _hold(self, epoch: int) -> None:
        """Renew the lease until the assignment is over or lost, independently of all other work."""
        while not self._over.wait(self._lease_s / 6) and self.renew(epoch):
            pass

    def renew(self, epoch: int) -> bool:
        """Renew the lease once. Returns False when the assignment is lost."""
        asked = time.monotonic()
        ours = True
        try:
            ours = self._locks.acquire(self._scope, self._holder, int(self._lease_s * 1000)).epoch == epoch
            self.renewed = asked if ours else self.renewed
        except Exception as error:  # after any error, only time decides
            logger.warning("consumer.cannot_renew: %s", error)
        silent_s = time.monotonic() - self.renewed
        if ours and (self._patience_s is None or silent_s <= self._patience_s):
            return True
        self.lose()
        return False

    def _thread(self, work: Callable[[], None], what: str, over: threading.Event) -> threading.Thread:
        thread = RevivedThread(work, f"{self._context.group}-{what}-{self._context.topic}", over)
        thread.start()
        return thread
