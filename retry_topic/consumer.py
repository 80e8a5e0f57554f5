"""The consumer runtime: hands messages to a handler and sees that none of them is lost, whatever it does.

One thread polls, a pool (or an event loop, for `async def` handlers) handles, one thread settles and keeps what is
in flight alive. A handler that returns nothing acknowledges; one that raises, or returns `Retry`, sends the message
to the group's retry topic in the same step that settles it. A message whose consumers keep dying is not given to the
handler any more: the worker crashing is counted apart from the message failing.

Delivery is at least once: a consumer that dies has its messages handed to another after `idle_ms`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.fingerprint import fingerprint, fingerprint_of
from retry_topic.headers import RetryState, read, retry_id, write
from retry_topic.home import EXPIRES_HEADER, Home
from retry_topic.message import Message
from retry_topic.names import check_group, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Failure, failure_of
from retry_topic.verdict import Ack, DeadLetter, Retry, verdict_of
from wheel_sched.errors import BrokerError, ConfigError, Rejected

logger = logging.getLogger("retry_topic.consumer")

Handler = Callable[[Message], Any]

_POLL_MS = 1_000  # how long an idle consumer waits at the broker; only the reaction to `stop` depends on it
_AWAY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a `Consumer`.

    Args:
        concurrency: messages handled at the same time. Defaults to 8.
        idle_ms: after this another consumer takes over what a dead one had; while a handler works, its message is
            kept alive. Defaults to 30 s.
        crash_cap: consumers that may die over one message before it is dead-lettered as poison. Defaults to 5.
    """

    concurrency: int = 8
    idle_ms: int = 30_000
    crash_cap: int = 5

    def __post_init__(self) -> None:
        problems = [
            f"expected {name} to be a whole number from {least} up, got: {value!r}"
            for name, value, least in (
                ("concurrency", self.concurrency, 1),
                ("idle_ms", self.idle_ms, 100),
                ("crash_cap", self.crash_cap, 1),
            )
            if type(value) is not int or value < least
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True)
class ConsumerStats:
    """Counters since the start; read from any thread."""

    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead: int = 0
    in_flight: int = 0
    poison: int = 0
    expired: int = 0


@dataclass(slots=True)
class _Outcome:
    """What is to become of a delivery: settled as it is, or forwarded to the retry topic."""

    delivery: Delivery
    forward: Message | None = None


class Consumer:
    """Consumes topics for a group.

    Args:
        home: store and broker, see `connect`.
        topics: what to consume; the group's redelivery topic is consumed as well.
        handler: called with each `Message`; plain or `async def`. Returns None or a verdict, or raises. On a
            redelivery `message.topic` is the topic it first failed on.
        group: the consumer group.
        config: see `ConsumerConfig`.

    Thread rules: a plain handler runs on up to `concurrency` threads; an async one on one loop of its own.
    """

    def __init__(
        self,
        home: Home,
        topics: str | Sequence[str],
        handler: Handler,
        *,
        group: str,
        config: ConsumerConfig | None = None,
    ) -> None:
        self.home = home
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.group = check_group(group)
        self.config = config or ConsumerConfig()
        self.stats = ConsumerStats()
        self._handler = handler
        self._asynchronous = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # an object whose __call__ is async
        )
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._in_flight: dict[int, Delivery] = {}
        self._room = threading.Condition()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._threads: list[threading.Thread] = []
        self._consumer: BrokerConsumer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = "new"
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Consumer {self.group} {self.topics} {self._state} in_flight={len(self._in_flight)}>"

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Join the group and begin."""
        with self._lock:
            if self._state != "new":
                return
            self.home.broker.create_topic(retry_topic_of(self.group))
            self._consumer = self._join()
            if self._asynchronous:
                self._loop = asyncio.new_event_loop()
                self._spawn(self._loop.run_forever, "loop")
            else:
                self._pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix=f"{self.group}-handler")
            self._spawn(self._poll, "poll")
            self._spawn(self._settle, "settle")
            self._state = "running"

    def stop(self, timeout_s: float = 30.0) -> None:
        """Drain: read no more, wait up to `timeout_s` for running handlers, settle, leave the group. Idempotent.

        What is still running then is handed to another consumer after `idle_ms`.
        """
        with self._lock:
            if self._state != "running":
                self._state = "stopped"
                return
            self._stopping.set()
            until = time.monotonic() + timeout_s
            with self._room:
                while self._in_flight and time.monotonic() < until:
                    self._room.wait(until - time.monotonic())
            self._settled.set()
            for thread in self._threads[1 if self._loop else 0 :]:
                thread.join(max(0.1, until - time.monotonic()) + 2)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._threads[0].join(2)
                self._loop.close()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            if self._consumer is not None:
                self._consumer.close()
            self._state = "stopped"

    def run(self) -> None:
        """Start and block until `stop` is called from elsewhere (a signal handler, say)."""
        self.start()
        self._stopping.wait()

    def _spawn(self, target: Callable[[], None], what: str) -> None:
        thread = threading.Thread(target=target, name=f"{self.group}-{what}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self) -> BrokerConsumer:
        topics = [*self.topics, redelivery_topic_of(self.group)]
        return self.home.broker.consumer(topics, self.group, idle_ms=self.config.idle_ms)

    # -- reading

    def _poll(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            with self._room:
                while len(self._in_flight) >= self.config.concurrency and not self._stopping.is_set():
                    self._room.wait(0.5)
                free = self.config.concurrency - len(self._in_flight)
            if self._stopping.is_set():
                return
            try:
                assert self._consumer is not None  # noqa: S101  # set by start
                deliveries = self._consumer.poll(free, _POLL_MS)
                failures = 0
            except BrokerError as error:
                if failures == 0:
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(_AWAY_S[min(failures, len(_AWAY_S) - 1)])
                failures += 1
                continue
            for delivery in deliveries:
                with self._room:
                    self._in_flight[id(delivery)] = delivery
                    self.stats.in_flight = len(self._in_flight)
                self.stats.delivered += 1
                self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        state = read(delivery.message.headers)
        message = delivery.message
        if message.topic == redelivery_topic_of(self.group) and state.original_topic:
            message = replace(message, topic=state.original_topic)
        if delivery.deliveries > self.config.crash_cap:
            self.stats.poison += 1
            text = f"handed out {delivery.deliveries} times, and every consumer died or hung over it"
            self._failed(delivery, state, Failure(error_class="poison", message=text, verdict="dead"))
        elif _expired(message):
            self.stats.expired += 1
            self._failed(delivery, state, Failure(error_class="expired", message="it came too late", verdict="dead"))
        elif self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._handle_async(delivery, state, message), self._loop)
        elif self._pool is not None:
            self._pool.submit(self._handle, delivery, state, message)

    # -- handling

    def _handle(self, delivery: Delivery, state: RetryState, message: Message) -> None:
        try:
            returned = self._handler(message)
            self._judge(delivery, state, returned)
        except BaseException as error:  # SystemExit in a handler fails its message, not the consumer
            self._raised(delivery, state, error)

    async def _handle_async(self, delivery: Delivery, state: RetryState, message: Message) -> None:
        try:
            awaitable: Awaitable[Any] = self._handler(message)
            self._judge(delivery, state, await awaitable)
        except BaseException as error:
            self._raised(delivery, state, error)

    def _judge(self, delivery: Delivery, state: RetryState, returned: Any) -> None:
        match verdict_of(returned):
            case Ack():
                self.stats.acknowledged += 1
                self._outcomes.put(_Outcome(delivery))
            case Retry() as retry:
                failure = Failure(message=retry.reason, retry_after_ms=retry.after_ms, verdict="retry")
                self._failed(delivery, state, failure)
            case DeadLetter(reason):
                self._failed(delivery, state, Failure(message=reason, verdict="dead"))

    def _raised(self, delivery: Delivery, state: RetryState, error: BaseException) -> None:
        now_ms = time.time_ns() // 1_000_000
        failure = failure_of(error, now_ms=now_ms)
        if isinstance(error, Rejected):
            logger.error("consumer.bad_verdict: %s", error)
        self._failed(delivery, state, failure, fingerprint_of(error))

    def _failed(self, delivery: Delivery, state: RetryState, failure: Failure, print_: str | None = None) -> None:
        if failure.verdict == "dead":
            self.stats.dead += 1
        else:
            self.stats.retried += 1
        forward = failed_message(self.group, delivery.message, state, failure, print_)
        self._outcomes.put(_Outcome(delivery, forward))

    # -- settling

    def _settle(self) -> None:
        beat_s = self.config.idle_ms / 3000
        next_beat = time.monotonic() + beat_s
        pending: list[_Outcome] = []
        failures = 0
        while True:
            wait_s = max(0.0, next_beat - time.monotonic()) if not pending else _AWAY_S[min(failures, 5)]
            pending += self._take(min(wait_s, 0.2))
            if pending:
                try:
                    pending = self._settle_batch(pending)
                    failures = failures + 1 if pending else 0
                except BrokerError as error:
                    if failures == 0:
                        logger.warning("consumer.cannot_settle: %s", error)
                    failures += 1
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + beat_s
                self._beat()
            if self._settled.is_set() and not pending and self._outcomes.empty():
                return
            if self._settled.is_set() and failures > 3:
                return  # the broker is away: what is unsettled comes again

    def _take(self, wait_s: float) -> list[_Outcome]:
        try:
            taken = [self._outcomes.get(timeout=wait_s)]
        except queue.Empty:
            return []
        while len(taken) < 200:
            try:
                taken.append(self._outcomes.get_nowait())
            except queue.Empty:
                break
        return taken

    def _settle_batch(self, outcomes: list[_Outcome]) -> list[_Outcome]:
        """Settle what can be settled; what could not comes back to be tried again."""
        assert self._consumer is not None  # noqa: S101  # set by start
        done = [outcome for outcome in outcomes if outcome.forward is None]
        if done:
            self._consumer.ack([outcome.delivery for outcome in done])
            self._free(done)
        failed = [outcome for outcome in outcomes if outcome.forward is not None]
        if not failed:
            return []
        pairs = [(outcome.delivery, outcome.forward) for outcome in failed if outcome.forward is not None]
        answers = self._consumer.forward(pairs)
        left = []
        gone = []
        for outcome, answer in zip(failed, answers, strict=True):
            if answer is None:
                gone.append(outcome)
            else:
                logger.warning("consumer.retry_topic_refused: %s", answer.reason)
                left.append(outcome)
        self._free(gone)
        return left

    def _free(self, outcomes: Sequence[_Outcome]) -> None:
        with self._room:
            for outcome in outcomes:
                self._in_flight.pop(id(outcome.delivery), None)
            self.stats.in_flight = len(self._in_flight)
            self._room.notify_all()

    def _beat(self) -> None:
        with self._room:
            deliveries = list(self._in_flight.values())
        if deliveries and self._consumer is not None:
            try:
                self._consumer.beat(deliveries)
            except BrokerError as error:
                logger.warning("consumer.cannot_beat: %s", error)


def _expired(message: Message) -> bool:
    raw = message.header(EXPIRES_HEADER)
    return raw is not None and raw.isdigit() and len(raw) < 17 and int(raw) < time.time_ns() // 1_000_000


def failed_message(
    group: str, message: Message, state: RetryState, failure: Failure, print_: str | None = None
) -> Message:
    """The message as it goes to the group's retry topic: payload untouched, headers tell of the failure.

    Consumers in other languages write the same headers; the intake believes none of them blindly.
    """
    now_ms = time.time_ns() // 1_000_000
    source = message.source
    origin: dict[str, Any] = {}
    if state.id is None and source is not None:
        origin = {
            "id": retry_id(group, state.original_topic or source.topic, source.partition, source.offset),
            "original_topic": state.original_topic or source.topic,
            "original_partition": source.partition,
            "original_offset": source.offset,
            "original_timestamp_ms": source.timestamp_ms,
        }
    state = replace(
        state,
        **origin,
        attempt=state.attempt + 1,
        first_failed_ms=now_ms if state.first_failed_ms is None else min(state.first_failed_ms, now_ms),
        last_failed_ms=now_ms,
        due_ms=None,
        verdict=failure.verdict,
        retry_after_ms=failure.retry_after_ms,
        consumer_group=group,
        error_class=failure.error_class or None,
        error_mro=failure.error_mro,
        error_message=failure.message or None,
        error_fingerprint=print_ or fingerprint(failure.error_class, failure.message),
        error_status=failure.status,
        oddities=(),
    )
    return message.to(retry_topic_of(group), write(message.headers, state))
