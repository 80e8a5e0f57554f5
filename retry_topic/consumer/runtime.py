"""The consumer's threads: one polls, a pool (or an event loop, for `async def` handlers) handles, one settles.

A handler that returns nothing acknowledges; one that raises, or returns `Retry`, sends the message to the group's
retry topic in the same step that settles it. A message whose consumers keep dying is handled alone, and then not at
all any more: the worker crashing is counted apart from the message failing.

Delivery is at least once: a consumer that dies has its messages handed to another after `idle_ms`.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from retry_topic.brokers.protocol import (
    BrokerConsumer,
    Delivery,
    LogBroker,
    PartitionedBroker,
    PartitionedConsumer,
    create_topics,
)
from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.failing import (
    delivered_message,
    expired,
    failed_message,
    failure_in,
    outlived,
    retry_state,
    too_late,
)
from retry_topic.consumer.failure_log import FailureLog, OnFailure
from retry_topic.consumer.handler_loop import HandlerLoop
from retry_topic.consumer.heads import Heads
from retry_topic.consumer.ordered import OrderedTopic
from retry_topic.consumer.partitions import OrderedPartitions
from retry_topic.consumer.reader import OrderedReader
from retry_topic.consumer.reporting import Reporter
from retry_topic.consumer.settling import AWAY_S, InFlight, Outcome, Settler, Sink
from retry_topic.consumer.successes import Successes, success_of
from retry_topic.consumer.term import Reading
from retry_topic.history import Attempt, HistoryWriter, releasing_shard
from retry_topic.home import EXPIRES_HEADER, Home
from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from retry_topic.message.topic_names import check_group
from retry_topic.policy import Failure
from retry_topic.verdict import Ack, DeadLetter, Retry, verdict_of
from wheel_sched.errors import BrokerError, ConfigError, Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread

logger = logger_of("retry_topic.consumer")

Handler = Callable[[Message], Any]

_POLL_MS = 1_000  # how long an idle consumer waits at the broker; only the reaction to `stop` depends on it

_SUSPECT_FROM = 3  # deliveries: one death may be a deployment, two over the same message hardly


class Consumer:
    """Consumes topics for a group.

    Args:
        home: store and broker, see `connect`.
        topics: what to consume; the group's redelivery topic is consumed as well.
        handler: called with each `Message`; plain or `async def`. Returns None or a verdict, or raises. On a
            redelivery `message.topic` is the topic it first failed on.
        group: the consumer group.
        config: see `ConsumerConfig`.
        on_failure: called after each failed attempt with the message, the exception (None: the handler returned a
            verdict, or was never called) and the attempt's number, in the handler's thread or loop; for collectors of
            errors. What it raises is logged. Defaults to nothing.

    Raises:
        ConfigError: `ordering` is not "none", and the broker's topics are logs whose partitions it does not give out;
            or `on_failure` is async.

    Thread rules: a plain handler runs on up to `concurrency` threads; an async one on one loop of its own. `start`
    and `stop` from any thread but a handler's; a consumer that was stopped is not started again.
    """

    def __init__(
        self,
        home: Home,
        topics: str | Sequence[str],
        handler: Handler,
        *,
        group: str,
        config: ConsumerConfig | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.home = home
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.group = check_group(group)
        self.config = config or ConsumerConfig()
        in_partitions = isinstance(home.broker, PartitionedBroker)
        if self.config.ordering != "none" and isinstance(home.broker, LogBroker) and not in_partitions:
            raise ConfigError(
                f"expected ordering to be 'none' with {type(home.broker).__name__}, got: {self.config.ordering!r}; "
                "order by key is kept on Redis streams, on Kafka and in memory: nothing was started"
            )
        self.stats = ConsumerStats()
        self._handler = handler
        self._failure_log = FailureLog(on_failure)
        self._asynchronous = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # an object whose __call__ is async
        )
        self._in_flight = InFlight(self.config.idle_ms)
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._state = "new"
        self._lock = threading.Lock()
        self._consumer: BrokerConsumer | None = None
        self._topic_id_of: Callable[[Delivery], str] | None = None
        self._settler: Settler | None = None
        self._history = HistoryWriter(home.store, self.config.history) if self.config.history else None
        self._pool: ThreadPoolExecutor | None = None
        self._loop: HandlerLoop | None = None
        self._threads: dict[str, RevivedThread] = {}
        self._away = False  # the broker does not answer the reader
        self._heads: Heads | None = None
        self._ordered: list[OrderedReader] = []
        self._reporter = Reporter(home.store, group, self.config.destination) if self.config.reports else None

    def __repr__(self) -> str:
        return f"<Consumer {self.group} {self.topics} {self._state} in_flight={len(self._in_flight)}>"

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ailing(self) -> list[str]:
        """What of it a restart would mend, in words: threads that have ended."""
        if self._state != "running":
            return [] if self._state == "stopping" else ["it does not run"]
        return [f"{thread.name} has ended" for thread in self._all_threads() if not thread.is_alive()]

    @property
    def ready(self) -> bool:
        """It runs with all its threads, and the broker answered when it was last asked."""
        works = self._state == "running" and all(thread.works for thread in self._all_threads())
        return works and not self._away

    def _all_threads(self) -> list[RevivedThread]:
        others = [part.thread for part in (self._heads, self._reporter, self._history, *self._ordered) if part]
        return [*self._threads.values(), *(thread for thread in others if thread is not None)]

    def start(self) -> None:
        """Join the group and begin.

        Raises:
            BrokerError: the broker refused or is away; nothing was started, and it may be tried again.
        """
        with self._lock:
            if self._state != "new":
                return
            broker = self.home.broker
            own = self.config.group_topics.of(self.group)
            create_topics(broker, {"retry": own["retry"], "redelivery": own["redelivery"]})
            in_order = self.config.ordering == "key"
            topics = [*(() if in_order else self.topics), own["redelivery"]]
            consumer = broker.consumer(topics, self.group, idle_ms=self.config.idle_ms)
            self._consumer = consumer
            self._topic_id_of = consumer.topic_id_of if isinstance(consumer, PartitionedConsumer) else None
            successes = Successes(self.home.store)
            settler = Settler(
                broker, consumer, self._in_flight, self.stats, self.config.idle_ms, self._history, successes
            )
            self._settler = settler
            if self._asynchronous:
                self._loop = HandlerLoop(self._handle_async, self._not_handled)
                self._spawn(self._loop.run, "loop", self._loop.ending)
            else:
                self._pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix=f"{self.group}-handler")
            if self._history is not None:
                self._history.start()
            self._spawn(settler.run, "settle", settler.finishing)
            if self._reporter is not None:
                self._reporter.start()
            give: Callable[[Delivery], None] = lambda delivery: self._hand_over(delivery, settler)  # noqa: E731
            if in_order:
                self._heads = Heads(self.home.store, self._give, settler, lambda one: self._state_of(one.message))
                self._heads.start(f"{self.group}-heads")
                give = self._heads.arrived
                self._ordered = [self._read_in_order(topic) for topic in dict.fromkeys(self.topics)]
            self._spawn(lambda: self._poll(consumer, give), "poll", self._stopping)
            self._state = "running"

    def _read_in_order(self, topic: str) -> OrderedReader:
        broker = self.home.broker
        broker.create_topic(topic)
        reading = Reading(
            self.home, topic, self.group, self.config, self.stats, self._give, self._history, self._failure_log
        )
        if isinstance(broker, PartitionedBroker):
            reader: OrderedReader = OrderedPartitions(reading, broker)
        else:
            reader = OrderedTopic(reading)
        reader.start()
        return reader

    def stop(self, timeout_s: float = 30.0) -> None:
        """Drain: read no more, wait up to `timeout_s` for running handlers, settle, leave the group. Idempotent.

        What is still running then is handed to another consumer after `idle_ms`.
        """
        with self._lock:
            if self._state == "running":
                self._state = "stopping"
                self._drain(time.monotonic() + timeout_s)
            self._state = "stopped"
            self._stopping.set()
            self._stopped.set()

    def run(self) -> None:
        """Start and block until `stop`, called from elsewhere (a signal handler, say), is through."""
        self.start()
        self._stopped.wait()

    def _drain(self, until: float) -> None:
        def left_s() -> float:
            return max(0.0, until - time.monotonic())

        self._stopping.set()
        for reading in self._ordered:
            reading.stop(until)
        # first the reader, so that nothing comes after the last look at what is in flight
        self._threads["poll"].join(left_s() + _POLL_MS / 1000)
        self._in_flight.wait_until_at_most(0, left_s())
        if self._heads is not None:
            self._heads.finish(left_s() + 2)
        for reading in self._ordered:
            reading.join(left_s() + 2)
        if self._reporter is not None:
            self._reporter.stop()
        if self._settler is not None:
            self._settler.finish()
            self._threads["settle"].join(left_s() + 2)  # two tries at a broker that is away
        if self._history is not None:
            self._history.stop(left_s() + 2)
        if self._loop is not None:
            self._loop.end()
            self._threads["loop"].join(2)
            self._loop.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._consumer is not None:
            self._consumer.close()

    def _spawn(self, work: Callable[[], None], what: str, stopping: threading.Event) -> None:
        self._threads[what] = thread = RevivedThread(work, f"{self.group}-{what}", stopping)
        thread.start()

    # -- reading

    def _poll(self, consumer: BrokerConsumer, give: Callable[[Delivery], None]) -> None:
        failures = 0
        careful = True  # one at a time at first: the next message may be what killed the process before this one
        while not self._stopping.is_set():
            room = self._in_flight.room(self.config.concurrency, timeout_s=0.5)
            if room == 0 or self._stopping.is_set():
                continue
            try:
                deliveries = consumer.poll(1 if careful else room, _POLL_MS)
                failures, self._away = 0, False
            except Exception as error:  # whatever the broker does, reading goes on
                self._away = True
                if not isinstance(error, BrokerError):
                    logger.exception("consumer.poll_failed")
                elif failures == 0 and not self._stopping.is_set():
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])
                failures += 1
                continue
            self.stats.delivered += len(deliveries)
            fresh = [delivery for delivery in deliveries if self._in_flight.add(delivery)]
            self.stats.in_flight = len(self._in_flight)
            suspects = [delivery for delivery in fresh if is_suspect(delivery, self.config.crash_cap)]
            careful = careful and bool(suspects)
            with self._loop.together() if self._loop is not None else contextlib.nullcontext():
                for delivery in fresh:
                    if delivery not in suspects:
                        self._try_to_give(delivery, give)
            self._one_by_one(suspects, give)

    def _try_to_give(self, delivery: Delivery, give: Callable[[Delivery], None]) -> None:
        """One that cannot be handed over is let go of: it comes again, and the others are handled."""
        try:
            give(delivery)
        except BaseException:
            logger.exception("consumer.not_handed_over: it comes again")
            self._in_flight.remove([delivery])

    def _one_by_one(self, suspects: list[Delivery], give: Callable[[Delivery], None]) -> None:
        """Hand suspects over with nothing else in flight, so that a death counts against the one that caused it.

        No longer than `idle_ms` each: a message that hangs must not stop everything. In no order, so that who comes
        after the culprit, and is blamed with it, is another one each time.
        """
        random.shuffle(suspects)
        while suspects:
            if not self._calm(len(suspects)):
                self._in_flight.remove(suspects)  # not handled: they come to somebody else
                return
            self._try_to_give(suspects.pop(), give)
            if not suspects:
                self._calm(0)

    def _calm(self, count: int) -> bool:
        """Wait until no more than `count` are in flight, or `idle_ms` at most; False when it is time to stop."""
        until = time.monotonic() + self.config.idle_ms / 1000
        while not self._in_flight.wait_until_at_most(count, 0.2) and time.monotonic() < until:
            if self._stopping.is_set():
                return False
        return True

    def _state_of(self, message: Message) -> RetryState:
        return retry_state(self.group, message, self.config.secrets, self.config.group_topics)

    def _hand_over(self, delivery: Delivery, sink: Sink) -> None:
        self._give(delivery, self._state_of(delivery.message), sink)

    def _give(self, delivery: Delivery, state: RetryState, sink: Sink) -> None:
        """Have a delivery handled; its outcome goes to `sink`."""
        message = delivered_message(self.group, delivery.message, state, self.config.group_topics)
        if delivery.deliveries > self.config.crash_cap:
            self.stats.poison += 1
            sink.put(self._failed(delivery, state, outlived(delivery.deliveries)))
        elif expired(message.header(EXPIRES_HEADER)):
            self.stats.expired += 1
            sink.put(self._failed(delivery, state, too_late()))
        elif self._loop is not None:
            self._loop.give(delivery, state, message, sink)
        elif self._pool is not None:
            self._pool.submit(self._handle, delivery, state, message, sink)

    # -- handling

    def _handle(self, delivery: Delivery, state: RetryState, message: Message, sink: Sink) -> None:
        started_ms = _now_ms()
        try:
            outcome = self._judged(delivery, state, started_ms, self._handler(message))
        except BaseException as error:  # SystemExit in a handler fails its message, not the consumer
            outcome = self._raised(delivery, state, started_ms, error)
        self._report(message, state, outcome)
        sink.put(outcome)

    async def _handle_async(
        self, loop: HandlerLoop, delivery: Delivery, state: RetryState, message: Message, sink: Sink
    ) -> None:
        started_ms = _now_ms()
        try:
            awaitable: Awaitable[Any] = self._handler(message)
            outcome = self._judged(delivery, state, started_ms, await awaitable)
        except BaseException as error:
            if loop.cut_off:
                raise  # by `stop`: it did not fail, it comes again
            outcome = self._raised(delivery, state, started_ms, error)
        self._report(message, state, outcome)
        loop.ended(sink, outcome)

    def _not_handled(
        self,
        loop: HandlerLoop,
        delivery: Delivery,
        state: RetryState,
        message: Message,
        sink: Sink,
        error: BaseException,
    ) -> None:
        outcome = self._raised(delivery, state, _now_ms(), error)
        self._report(message, state, outcome)
        loop.ended(sink, outcome)

    def _report(self, message: Message, state: RetryState, outcome: Outcome) -> None:
        if self._reporter is not None:
            self._reporter.note(message, first=state.attempt == 0, succeeded=outcome.ended == "acknowledged")

    def _judged(self, delivery: Delivery, state: RetryState, started_ms: int, returned: Any) -> Outcome:
        match verdict_of(returned):
            case Ack():
                success = success_of(self.group, delivery.message, state)
                attempt = self._went_through(delivery, state, started_ms)
                return Outcome(delivery, "acknowledged", attempt=attempt, success=success)
            case Retry() as retry:
                failure = Failure(message=retry.reason, retry_after_ms=retry.after_ms, verdict="retry")
            case DeadLetter(reason):
                failure = Failure(message=reason, verdict="dead")
        return self._failed(delivery, state, failure, started_ms=started_ms)

    def _raised(self, delivery: Delivery, state: RetryState, started_ms: int, error: BaseException) -> Outcome:
        if issubclass(type(error), Rejected):  # isinstance would ask the error's own `__class__`
            logger.error("consumer.bad_verdict: %s", error)
        failure, print_ = failure_in(error)
        return self._failed(delivery, state, failure, print_, started_ms, error)

    def _failed(
        self,
        delivery: Delivery,
        state: RetryState,
        failure: Failure,
        print_: str | None = None,
        started_ms: int | None = None,
        error: BaseException | None = None,
    ) -> Outcome:
        forward = failed_message(
            self.group,
            delivery.message,
            state,
            failure,
            print_,
            self.config.secrets,
            started_ms,
            self.config.group_topics,
            None if self._topic_id_of is None else self._topic_id_of(delivery),
        )
        seen = delivered_message(self.group, delivery.message, state, self.config.group_topics)
        self._failure_log.tell(seen, forward, state.attempt + 1, failure, error)
        return Outcome(delivery, "dead" if failure.verdict == "dead" else "retried", forward)

    def _went_through(self, delivery: Delivery, state: RetryState, started_ms: int) -> Attempt | None:
        """The row of a delivery that went well after others had failed; None for the first one, and without history."""
        if self._history is None or not state.attempt or state.id is None:
            return None
        topic, number = state.original_topic or delivery.message.topic, state.attempt + 1
        shard = releasing_shard(state, number, None if self.home.by_source else self.home.store.shards)
        return Attempt(state.stem, topic, number, state.due_ms, started_ms, "ok", None, shard)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def is_suspect(delivery: Delivery, crash_cap: int) -> bool:
    """Whether consumers died over it so often that what is handled beside it is in danger of its blame."""
    return max(2, min(_SUSPECT_FROM, crash_cap)) <= delivery.deliveries <= crash_cap
