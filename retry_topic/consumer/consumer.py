"""The consumer, from top to bottom: poll -> hand to handlers -> outcome -> settle.

| step | where |
|---|---|
| poll: read deliveries, never more than may be handled at the same time | here, in its own thread |
| hand each one to the handlers, unless it has expired or has killed too many consumers | here, then `handlers` |
| turn the handler's return value or exception into an outcome | `outcome`, `retry_record` |
| settle: acknowledge the delivery, or forward its record to the retry topic | `settling`, in its own thread |

With `ordering="key"`, `ordered` reads the topics and hands over messages in the order of their keys. Then this module
polls only the redelivery topic, and its messages pass through `ordered.key_heads` before the handlers.

Delivery is at least once: when a consumer dies, its messages go to another consumer after `idle_ms`. A crash is not a
failed attempt; it has its own count. A message over which several consumers died is a suspect: it is handled alone.
After `crash_cap` crashes it is not handled any more, and becomes a dead letter.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from retry_topic.brokers.protocol import (
    BrokerConsumer,
    Delivery,
    LogBroker,
    PartitionedBroker,
    PartitionedConsumer,
    create_topics,
)
from retry_topic.connection import EXPIRES_HEADER, Connection
from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.handlers import Handler, HandlerCalls, HandlerLoop, HandlerThreads, is_async
from retry_topic.consumer.ordered.assigned_partitions import OrderedPartitions
from retry_topic.consumer.ordered.assignment import ReaderContext
from retry_topic.consumer.ordered.key_heads import KeyHeads
from retry_topic.consumer.ordered.leased_topic import OrderedTopic
from retry_topic.consumer.ordered.reader import OrderedReader
from retry_topic.consumer.outcome import FailureLog, OnFailure, Outcomes, Sink, expired, is_suspect, outlived, too_late
from retry_topic.consumer.reporting import Reporter
from retry_topic.consumer.retry_record import delivered_message, retry_state
from retry_topic.consumer.settling import AWAY_S, InFlightDeliveries, Settler, Successes
from retry_topic.history import HistoryWriter
from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from retry_topic.message.topic_names import check_group
from retry_topic.policy import Failure
from wheel_sched.errors import BrokerError, ConfigError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import MemberAnnouncer

logger = logger_of("retry_topic.consumer")

_POLL_MS = 1_000  # how long an idle consumer waits at the broker; only the reaction to `stop` depends on it


class Consumer:
    """Consumes topics for a group.

    Args:
        connection: the connection (store and broker), see `connect`.
        topics: the topics to consume. The group's redelivery topic is consumed as well.
        handler: called with each `Message`; plain or `async def`. It returns None or a verdict, or raises. On a
            redelivery, `message.topic` is the topic on which the message first failed.
        group: the consumer group.
        config: see `ConsumerConfig`.
        on_failure: called after each failed attempt with the message, the exception (None: the handler returned a
            verdict or was not called) and the number of the attempt. It runs in the handler's thread or loop. If the
            handler was not called, it runs in a thread of the consumer. Use it to send errors to an error tracker. An
            exception that it raises is logged. Defaults to None.

    Raises:
        ConfigError: `ordering` is not "none" although the broker's topics are logs and it assigns no partitions; or
            `on_failure` is not a plain function.

    Thread rules: a plain handler runs on up to `concurrency` threads, an async one on one event loop. Call `start` and
    `stop` from any thread except a handler's. A stopped consumer is not started again.
    """

    def __init__(
        self,
        connection: Connection,
        topics: str | Sequence[str],
        handler: Handler,
        *,
        group: str,
        config: ConsumerConfig | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.connection = connection
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.group = check_group(group)
        self.config = config or ConsumerConfig()
        broker = connection.broker
        unordered = isinstance(broker, LogBroker) and not isinstance(broker, PartitionedBroker)
        if self.config.ordering != "none" and unordered:
            raise ConfigError(
                f"expected ordering to be 'none' with {type(broker).__name__}, got: {self.config.ordering!r}; "
                "order by key is kept on Redis streams, on Kafka and in memory: nothing was started"
            )
        self.stats = ConsumerStats()
        self._failure_log = FailureLog(on_failure)
        self._outcomes = Outcomes(
            self.group, self.config, self._failure_log, None if connection.by_source else connection.store.shards
        )
        self._reporter = Reporter(connection.store, group, self.config.destination) if self.config.reports else None
        self._calls = HandlerCalls(handler, self._outcomes, self._reporter)
        self._asynchronous = is_async(handler)
        self._in_flight = InFlightDeliveries(self.config.idle_ms)
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._state = "new"
        self._lock = threading.RLock()  # reentrant: a signal handler may call `stop` in the middle of `start` or `stop`
        # `start` makes the next five objects
        self._announcer: MemberAnnouncer
        self._consumer: BrokerConsumer
        self._settler: Settler
        self._handlers: HandlerThreads | HandlerLoop
        self._hand_over: Callable[[Delivery], None]
        self._history = HistoryWriter(connection.store, self.config.history) if self.config.history else None
        self._threads: dict[str, RevivedThread] = {}
        self._poll_failures = 0  # polls that failed in a row
        self._careful = True  # poll one message at a time: the next one may have killed the previous process
        self._heads: KeyHeads | None = None
        self._ordered: list[OrderedReader] = []

    def __repr__(self) -> str:
        return f"<Consumer {self.group} {self.topics} {self._state} in_flight={len(self._in_flight)}>"

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def problems(self) -> list[str]:
        """The problems that a restart would fix, in words, such as threads that have ended."""
        if self._state != "running":
            return [] if self._state == "stopping" else ["it does not run"]
        return [f"{thread.name} has ended" for thread in self._all_threads() if not thread.is_alive()]

    @property
    def ready(self) -> bool:
        """Whether the consumer runs with all its threads, and the broker answered the last poll.

        With `ordering="key"`, only polls of the redelivery topic count.
        """
        works = self._state == "running" and all(thread.works for thread in self._all_threads())
        return works and not self._poll_failures

    def _all_threads(self) -> list[RevivedThread]:
        others = [part.thread for part in (self._heads, self._reporter, self._history, *self._ordered) if part]
        if self._reporter is not None:
            others.append(self._reporter.ends.thread)
        return [*self._threads.values(), *(thread for thread in others if thread is not None)]

    def start(self) -> None:
        """Join the group and begin.

        Raises:
            ConfigError: the broker cannot have a topic of such a name, or two of the group's topics have one name.
            BrokerError: the broker refused or does not answer. Nothing was started; the call may be repeated.
        """
        with self._lock:
            if self._state != "new":
                return
            self._state = "starting"
            try:
                self._open()
                self._start_threads()
            except BaseException:
                self._state = "new"
                raise
            self._state = "running"
            if self._stopping.is_set():
                self.stop()

    def _open(self) -> None:
        """Create the topics, join the group and make the objects that the threads use. No thread runs yet."""
        config, broker, store = self.config, self.connection.broker, self.connection.store
        own = config.group_topics.of(self.group)
        in_order = config.ordering == "key"
        ordered = [*dict.fromkeys(self.topics)] if in_order else []
        create_topics(broker, {"retry": own["retry"], "redelivery": own["redelivery"]})
        for topic in ordered:
            broker.create_topic(topic)
        topics = [own["redelivery"]] if in_order else [*self.topics, own["redelivery"]]
        self._consumer = consumer = broker.consumer(topics, self.group, idle_ms=config.idle_ms)
        if isinstance(consumer, PartitionedConsumer):
            self._outcomes.topic_id_of = consumer.topic_id_of
        self._settler = settler = Settler(
            broker, consumer, self._in_flight, self.stats, config.idle_ms, self._history, Successes(store)
        )
        self._handlers = self._make_handlers()
        self._hand_over = lambda delivery: self._give(delivery, self._state_of(delivery.message), settler)
        if in_order:
            self._heads = KeyHeads(store, self._give, settler, lambda one: self._state_of(one.message))
            self._hand_over = self._heads.arrived
            self._ordered = [self._ordered_reader(topic) for topic in ordered]
        member = this_process(
            "consumer", self.group, topics=(*dict.fromkeys(self.topics), own["redelivery"]), retries_to=own["retry"]
        )
        self._announcer = MemberAnnouncer(
            lambda: store,
            lambda: replace(member, holds={"in_flight": len(self._in_flight)}),
            config.announce_ms,
            f"{self.group}-announce",
        )

    def _make_handlers(self) -> HandlerThreads | HandlerLoop:
        if self._asynchronous:
            return HandlerLoop(self._calls.call_async, self._calls.not_called, self.config.concurrency)
        return HandlerThreads(self._calls, self.config.concurrency, f"{self.group}-handler")

    def _ordered_reader(self, topic: str) -> OrderedReader:
        context = ReaderContext(
            self.connection, topic, self.group, self.config, self.stats, self._give, self._history, self._failure_log
        )
        broker = self.connection.broker
        return OrderedPartitions(context, broker) if isinstance(broker, PartitionedBroker) else OrderedTopic(context)

    def _start_threads(self) -> None:
        """Start the threads of the consumer and of its parts."""
        if isinstance(self._handlers, HandlerLoop):
            self._spawn(self._handlers.run, "loop", self._handlers.ending)
        if self._history is not None:
            self._history.start()
        self._spawn(self._settler.run, "settle", self._settler.finishing)
        if self._reporter is not None:
            self._reporter.start()
        if self._heads is not None:
            self._heads.start(f"{self.group}-heads")
        for reader in self._ordered:
            reader.start()
        self._spawn(self._poll, "poll", self._stopping)
        self._announcer.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Drain: read no more, wait up to `timeout_s` for running handlers, settle, leave the group. Idempotent.

        Messages that are still being handled then go to another consumer, after `idle_ms` at the latest.
        """
        with self._lock:
            self._stopping.set()
            if self._state in ("starting", "stopping"):  # this call interrupts one that stops the consumer
                return
            try:
                if self._state == "running":
                    self._state = "stopping"
                    self._drain(time.monotonic() + timeout_s)
            finally:
                self._state = "stopped"
                self._stopped.set()

    def run(self) -> None:
        """Start, and block until a call of `stop`, in another thread or a signal handler, has stopped the consumer."""
        self.start()
        self._stopped.wait()

    def _drain(self, until: float) -> None:
        def left_s() -> float:
            return max(0.0, until - time.monotonic())

        self._stopping.set()
        for reading in self._ordered:
            reading.stop(until)
        # first end the poll thread: then no delivery is read after the last check of the deliveries in flight
        self._threads["poll"].join(left_s() + _POLL_MS / 1000)
        self._in_flight.wait_until_at_most(0, left_s())
        if self._heads is not None:
            self._heads.finish(left_s() + 2)
        for reading in self._ordered:
            reading.join(left_s() + 2)
        if self._reporter is not None:
            self._reporter.stop()
        self._settler.finish()
        self._threads["settle"].join(left_s() + 2)  # two attempts if the broker does not answer
        if self._history is not None:
            self._history.stop(left_s() + 2)
        if isinstance(self._handlers, HandlerLoop):
            self._handlers.end()
            self._threads["loop"].join(2)
        self._handlers.close()
        self._consumer.close()
        self._announcer.stop()

    def _spawn(self, work: Callable[[], None], what: str, stopping: threading.Event) -> None:
        self._threads[what] = thread = RevivedThread(work, f"{self.group}-{what}", stopping)
        thread.start()

    # -- poll

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self.step()

    def step(self) -> None:
        """Poll the broker once, and hand the deliveries to the handlers. The poll thread repeats this method.

        While `concurrency` messages are in flight, it only waits, for at most half a second. It also blocks while it
        polls, after an error of the broker, and while a suspect (a message over which consumers died) is handled alone.
        """
        room = self._in_flight.room(self.config.concurrency, timeout_s=0.5)
        if room == 0 or self._stopping.is_set():
            return
        try:
            deliveries = self._consumer.poll(1 if self._careful else room, _POLL_MS)
        except Exception as error:  # reading continues after any error of the broker
            self._cannot_poll(error)
            return
        self._poll_failures = 0
        self.stats.delivered += len(deliveries)
        fresh = [delivery for delivery in deliveries if self._in_flight.add(delivery)]
        self.stats.in_flight = len(self._in_flight)
        suspects = [delivery for delivery in fresh if is_suspect(delivery, self.config.crash_cap)]
        self._careful = self._careful and bool(suspects)
        with self._handlers.together():
            for delivery in fresh:
                if delivery not in suspects:
                    self._try_to_hand_over(delivery)
        self._one_by_one(suspects)

    def _cannot_poll(self, error: Exception) -> None:
        """Log the error of a poll, and wait. The wait grows with each further poll that fails in a row."""
        failures, self._poll_failures = self._poll_failures, self._poll_failures + 1
        if not isinstance(error, BrokerError):
            logger.error("consumer.poll_failed", exc_info=error)
        elif failures == 0 and not self._stopping.is_set():
            logger.warning("consumer.away: %s", error)
        self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])

    def _try_to_hand_over(self, delivery: Delivery) -> None:
        """Hand a delivery to the handlers. If that raises an error, drop the delivery; the broker delivers it again."""
        try:
            self._hand_over(delivery)
        except BaseException:
            logger.exception("consumer.not_handed_over: the message comes again")
            self._in_flight.remove([delivery])

    def _one_by_one(self, suspects: list[Delivery]) -> None:
        """Hand suspects (messages over which consumers died) to the handlers one by one, to find the cause of a crash.

        The wait for each one is at most `idle_ms`: a message that hangs must not stop the others. A crash can also
        count against a message that did not cause it. The order is random, so that such a crash does not always count
        against the same message.
        """
        random.shuffle(suspects)
        while suspects:
            if not self._calm(len(suspects)):
                self._in_flight.remove(suspects)  # not handled: they go to another consumer
                return
            self._try_to_hand_over(suspects.pop())
            if not suspects:
                self._calm(0)

    def _calm(self, count: int) -> bool:
        """Wait up to `idle_ms` until at most `count` deliveries are in flight. Returns False if the consumer stops."""
        until = time.monotonic() + self.config.idle_ms / 1000
        while not self._in_flight.wait_until_at_most(count, 0.2) and time.monotonic() < until:
            if self._stopping.is_set():
                return False
        return True

    # -- hand to handlers

    def _state_of(self, message: Message) -> RetryState:
        return retry_state(self.group, message, self.config.secrets, self.config.group_topics)

    def _give(self, delivery: Delivery, state: RetryState, sink: Sink) -> None:
        """Hand a delivery to the handlers, or give it up if it is poison or has expired. The outcome goes to `sink`."""
        message = delivered_message(self.group, delivery.message, state, self.config.group_topics)
        if delivery.deliveries > self.config.crash_cap:
            self.stats.poison += 1
            self._give_up(delivery, state, outlived(delivery.deliveries), sink)
        elif expired(message.header(EXPIRES_HEADER), self._outcomes.now_ms):
            self.stats.expired += 1
            self._give_up(delivery, state, too_late(), sink)
        else:
            self._handlers.give(delivery, state, message, sink)

    def _give_up(self, delivery: Delivery, state: RetryState, failure: Failure, sink: Sink) -> None:
        if self._reporter is not None:
            self._reporter.ends.note_attempt(state)
        sink.put(self._outcomes.failed(delivery, state, failure))
