"""OrderedTopic: reads one topic for a group, in the order of each key; of all consumers of the group one reads.

Competing readers could not keep an order: two messages of a key would be handled side by side. So a topic has an
owner, under a lease in the store, and the others stand by. The lease is three times `idle_ms` and is renewed twice in
each; an owner that could not renew it for one and a half lets go of what it has. So when a lease runs out, everything
that its holder had read and not settled has been silent for longer than `idle_ms`, and is handed out before anything
new. An owner that stops with empty hands gives the topic up at once.

What comes back on the redelivery topic is read by all consumers: of each key one message is out at a time (`heads`).
"""

from __future__ import annotations

import logging
import secrets as random_bytes
import socket
import threading
import time

from retry_topic.brokers.protocol import BrokerConsumer
from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.heads import Give
from retry_topic.consumer.lanes import Lanes
from retry_topic.consumer.settling import AWAY_S, InFlight, Settler
from retry_topic.history import HistoryWriter
from retry_topic.home import Home
from wheel_sched.errors import BrokerError, StoreError
from wheel_sched.store.key_gates import KeyGates, scope_of
from wheel_sched.store.operations.ordering import Owner

logger = logging.getLogger("retry_topic.consumer")

_STAND_BY_S = 1.0  # how soon a topic that was given up is taken over; one small command a look
_READ_AHEAD = 16  # messages read per handler, so that a busy key leaves something to do for the others


class _Tenure:
    """One term as a topic's owner: when its lease was renewed (`time.monotonic`), whether it was lost or is over."""

    def __init__(self, renewed: float) -> None:
        self.renewed = renewed
        self.lost = threading.Event()
        self.over = threading.Event()


class OrderedTopic:
    """One ordered topic of a consumer.

    Args:
        home: store and broker.
        topic: what to read.
        group: the consumer group.
        config: see `ConsumerConfig`.
        stats: where it counts.
        give: has a delivery handled.
        history: told of what went through after a failure. Defaults to none.
    """

    def __init__(
        self,
        home: Home,
        topic: str,
        group: str,
        config: ConsumerConfig,
        stats: ConsumerStats,
        give: Give,
        history: HistoryWriter | None = None,
    ) -> None:
        self.topic = topic
        self._home = home
        self._group = group
        self._config = config
        self._stats = stats
        self._give = give
        self._history = history
        self._gates = KeyGates(home.store)
        self._scope = scope_of(group, topic)
        self._holder = f"{socket.gethostname()[:60]}-{random_bytes.token_hex(8)}"
        self._idle_s = config.idle_ms / 1000
        self._lease_s = 3 * self._idle_s
        self._stopping = threading.Event()
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"{group}-read-{topic}", daemon=True)

    def __repr__(self) -> str:
        return f"<OrderedTopic {self.topic} group={self._group} {'stopping' if self._stopping.is_set() else 'running'}>"

    def start(self) -> None:
        """Begin to read, or to stand by."""
        self._thread.start()

    def stop(self, until: float) -> None:
        """Read no more; what is being handled has until then (`time.monotonic`) to end. `join` waits for it."""
        self._until = until
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                asked = time.monotonic()
                owned = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000))
                failures = 0
                if owned.epoch:
                    self._read(Owner(self._scope, self._holder, owned.epoch), asked)
                else:
                    self._stopping.wait(min(owned.for_ms / 1000 + 0.01, self._lease_s / 8, _STAND_BY_S))
            except Exception as error:  # whatever it is, somebody has to read the topic
                if not isinstance(error, StoreError | BrokerError):
                    logger.exception("consumer.reading_failed")
                elif failures == 0:
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])
                failures += 1

    def _read(self, owner: Owner, asked: float) -> None:
        """One term as the topic's owner."""
        closed = [key.gate for key in self._gates.closed(self._scope)]
        consumer = self._home.broker.consumer([self.topic], self._group, idle_ms=self._config.idle_ms)
        in_flight = InFlight(self._config.idle_ms)
        settler = Settler(
            self._home.broker, consumer, in_flight, self._stats, self._config.idle_ms, self._history, in_order=True
        )
        tenure = _Tenure(asked)
        lanes = Lanes(
            self._gates,
            owner,
            closed,
            group=self._group,
            secrets=self._config.secrets,
            parked_cap=self._config.parked_cap,
            give=self._give,
            sink=settler,
            lost=tenure.lost,
        )
        settling = threading.Thread(target=settler.run, name=f"{self._group}-settle-{self.topic}", daemon=True)
        holding = threading.Thread(
            target=self._hold, args=(owner, tenure, in_flight), name=f"{self._group}-hold-{self.topic}", daemon=True
        )
        settling.start()
        holding.start()
        lanes.start(f"{self._group}-lanes-{self.topic}")
        try:
            self._poll(consumer, in_flight, lanes, tenure)
        finally:
            in_flight.wait_until_at_most(0, max(0.0, self._until - time.monotonic()))
            left_s = max(0.0, self._until - time.monotonic())
            lanes.finish(left_s + 1)
            settler.finish()
            settling.join(left_s + 5)
            empty = len(in_flight) == 0 and not tenure.lost.is_set()
            tenure.over.set()
            in_flight.drop_all()
            holding.join(5)
            consumer.close()
        if empty:
            self._gates.leave(self._scope, self._holder)

    def _hold(self, owner: Owner, tenure: _Tenure, in_flight: InFlight) -> None:
        """Renew the lease, whatever else takes its time; when it cannot be, let go of everything."""
        while not tenure.over.wait(self._idle_s / 2):
            asked = time.monotonic()
            ours = True
            try:
                ours = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000)).epoch == owner.epoch
                tenure.renewed = asked if ours else tenure.renewed
            except Exception as error:  # a server that is away, or anything else: time decides
                logger.warning("consumer.cannot_renew: %s", error)
            if not ours or time.monotonic() - tenure.renewed > 1.5 * self._idle_s:
                tenure.lost.set()
                in_flight.drop_all()  # they are kept alive no longer
                return

    def _poll(self, consumer: BrokerConsumer, in_flight: InFlight, lanes: Lanes, tenure: _Tenure) -> None:
        from retry_topic.consumer import runtime  # the patience of all readers stands there

        careful = True  # as in `Consumer`: what killed the process before this one comes alone
        failures = 0
        limit = self._config.concurrency * _READ_AHEAD
        wait_ms = min(runtime._POLL_MS, max(1, self._config.idle_ms // 4))
        while not self._stopping.is_set() and not tenure.lost.is_set():
            if time.monotonic() - tenure.renewed > self._idle_s:
                tenure.lost.wait(wait_ms / 1000)  # until it is renewed, or lost
                continue
            room = in_flight.room(1 if careful else limit, timeout_s=wait_ms / 1000)
            if room == 0:
                continue
            try:
                deliveries = consumer.poll(room, wait_ms)
                failures = 0
            except BrokerError as error:
                if failures == 0 and not self._stopping.is_set():
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])
                failures += 1
                continue
            if time.monotonic() - tenure.renewed > 2 * self._idle_s:
                tenure.lost.set()  # we were stopped for so long that another may have begun
                in_flight.drop_all()
                return
            self._stats.delivered += len(deliveries)
            for delivery in deliveries:
                if in_flight.add(delivery):
                    lanes.arrived(delivery)
            if deliveries:
                careful = careful and any(runtime.is_suspect(one, self._config.crash_cap) for one in deliveries)
