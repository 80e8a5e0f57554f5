"""Term: a reader's time with one ordered source, from when its records come to it until it is over or lost.

It has in hand what was read and is not settled, keeps that alive, and holds the scope of the source's keys under a
lease in the store. Whoever owns the scope next has a greater epoch, by which the store refuses what this one says
later; so nothing of the order depends on how soon a reader finds out that it is none any more.

Records may be given to it before it owns the scope: they wait. Which keys are closed is loaded when it does.
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
from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.failure_log import FailureLog
from retry_topic.consumer.heads import Give
from retry_topic.consumer.lanes import Lanes
from retry_topic.consumer.settling import InFlight, Settler
from retry_topic.consumer.successes import Successes
from retry_topic.history import HistoryWriter
from retry_topic.home import Home
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.key_gates import KeyGates
from wheel_sched.store.operations.ordering import Owner

logger = logger_of("retry_topic.consumer")


@dataclass(frozen=True, slots=True)
class Reading:
    """What all terms of a reader have in common.

    Args:
        home: store and broker.
        topic: what is read.
        group: the consumer group.
        config: see `ConsumerConfig`.
        stats: where it counts.
        give: has a delivery handled.
        history: told of what went through after a failure. Defaults to none.
        failure_log: told of what cannot be parked. Defaults to none.
    """

    home: Home
    topic: str
    group: str
    config: ConsumerConfig
    stats: ConsumerStats
    give: Give
    history: HistoryWriter | None = None
    failure_log: FailureLog | None = None


def new_holder() -> str:
    """A name to own scopes under that nobody else has."""
    return f"{socket.gethostname()[:60]}-{random_bytes.token_hex(8)}"


class Term:
    """See the module.

    Args:
        reading: whose term it is.
        consumer: where the records come from.
        scope: of the source's keys.
        holder: in whose name the scope is owned; no two terms share one.
        lease_s: for how long, each time.
        patience_s: it lets go when it could not renew for so long. Defaults to never: the store's word decides.
        topic_id: a name for ever of the topic, for the ids of its messages. Defaults to its name.
        changed: told whenever something is settled. Defaults to a condition of its own.
    """

    def __init__(
        self,
        reading: Reading,
        consumer: BrokerConsumer,
        scope: str,
        holder: str,
        lease_s: float,
        *,
        patience_s: float | None = None,
        topic_id: str | None = None,
        changed: threading.Condition | None = None,
    ) -> None:
        self._reading = reading
        self._gates = KeyGates(reading.home.store)
        self._scope = scope
        self._holder = holder
        self._lease_s = lease_s
        self._patience_s = patience_s
        self._topic_id = topic_id
        self.lost = threading.Event()
        self.renewed = time.monotonic()  # when the lease was asked for that we have
        self.in_flight = InFlight(reading.config.idle_ms, changed)
        self._settler = Settler(
            reading.home.broker,
            consumer,
            self.in_flight,
            reading.stats,
            reading.config.idle_ms,
            reading.history,
            Successes(reading.home.store),
            in_order=True,
        )
        self._lanes: Lanes | None = None
        self._early: list[Delivery] = []  # given before the scope was ours
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._settling = self._thread(self._settler.run, "settle", self._settler.finishing)
        self._holding: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "owned" if self._lanes is not None else "waiting"
        return f"<Term {self._reading.topic} {self._scope} {state} in_flight={len(self.in_flight)}>"

    def begin(self, epoch: int, asked: float) -> None:
        """The scope is ours since `asked` (`time.monotonic`), in this epoch."""
        self._owned(epoch, asked)
        self._holding = self._thread(lambda: self._hold(epoch), "hold", self._over)

    def begin_when_free(self) -> None:
        """Own the scope as soon as nobody else does; meanwhile what is given waits."""

        def wait_and_hold() -> None:
            epoch = self._own()
            if epoch:
                self._hold(epoch)

        self._holding = self._thread(wait_and_hold, "hold", self._over)

    def add(self, delivery: Delivery) -> None:
        """A delivery was read; one that is in hand already is not taken twice."""
        if self.in_flight.add(delivery):
            with self._lock:
                if self._lanes is None:
                    self._early.append(delivery)
                else:
                    self._lanes.arrived(delivery)

    def lose(self) -> None:
        """The source is another reader's: nothing is begun, told or kept alive any more."""
        self.lost.set()
        self.in_flight.drop_all()

    def end(self, until: float) -> bool:
        """Wait until then (`time.monotonic`) for what is handled, settle it, end. Whether hands are empty."""
        with self._lock:
            if self._lanes is None:  # the scope was never ours: others read what waits for it
                self._over.set()
                self.in_flight.drop_all()
        self.in_flight.wait_until_at_most(0, max(0.0, until - time.monotonic()))
        left_s = max(0.0, until - time.monotonic())
        if self._lanes is not None:
            self._lanes.finish(left_s + 1)
        self._settler.finish()
        self._settling.join(left_s + 5)
        empty = len(self.in_flight) == 0 and not self.lost.is_set()
        self._over.set()
        self.in_flight.drop_all()
        if self._holding is not None:
            self._holding.join(5)
        return empty

    def leave(self) -> None:
        """Give the scope up, so that another has it at once; it lapses where the store is away."""
        self._over.set()
        with contextlib.suppress(StoreError):
            self._gates.leave(self._scope, self._holder)

    def _own(self) -> int:
        """Wait for the scope; its epoch, 0 when the term is over."""
        pause_s = 0.0
        while not self._over.wait(pause_s) and not self.lost.is_set():
            asked = time.monotonic()
            try:
                owned = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000))
                if owned.epoch:
                    self._owned(owned.epoch, asked)
                    if self._over.is_set():  # meanwhile; it may have been given up before we had it
                        self._gates.leave(self._scope, self._holder)
                    return owned.epoch
                pause_s = min(owned.for_ms / 1000 + 0.01, self._lease_s / 8, 1.0)
            except Exception as error:  # a server that is away, or anything else: records wait
                logger.warning("consumer.cannot_own: %s", error)
                pause_s = 1.0
        return 0

    def _owned(self, epoch: int, asked: float) -> None:
        reading, self.renewed = self._reading, asked
        closed = [key.gate for key in self._gates.closed(self._scope)]
        lanes = Lanes(
            self._gates,
            Owner(self._scope, self._holder, epoch),
            closed,
            group=reading.group,
            secrets=reading.config.secrets,
            parked_cap=reading.config.parked_cap,
            give=reading.give,
            sink=self._settler,
            lost=self.lost,
            topic_id=self._topic_id,
            topics=reading.config.group_topics,
            failure_log=reading.failure_log,
        )
        with self._lock:
            if self._over.is_set():
                return
            lanes.start(f"{reading.group}-lanes-{reading.topic}")
            self._lanes = lanes
            for delivery in self._early:
                lanes.arrived(delivery)
            self._early.clear()

    def _hold(self, epoch: int) -> None:
        """Renew the lease, whatever else takes its time; when it is another's, or cannot be had, let go."""
        while not self._over.wait(self._lease_s / 6):
            asked = time.monotonic()
            ours = True
            try:
                ours = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000)).epoch == epoch
                self.renewed = asked if ours else self.renewed
            except Exception as error:  # a server that is away, or anything else: time decides
                logger.warning("consumer.cannot_renew: %s", error)
            silent_s = time.monotonic() - self.renewed
            if not ours or (self._patience_s is not None and silent_s > self._patience_s):
                self.lose()
                return

    def _thread(self, work: Callable[[], None], what: str, over: threading.Event) -> threading.Thread:
        thread = RevivedThread(work, f"{self._reading.group}-{what}-{self._reading.topic}", over)
        thread.start()
        return thread
