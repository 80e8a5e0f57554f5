"""Runs a user's handler under a user's policy in virtual time, one message after the other, in the calling thread.

    publish ─► consumer's step ─► handler ─► intake's step ─► dispatcher's step ─► time moves to the next due time ─┐
                     └──────────────────────────────────────────────────────────────────────────────────────────────┘

The steps are the product's own code. In a real system threads repeat them; here one loop does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Sequence
from typing import Any, Literal

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.connection import Connection
from retry_topic.consumer.handlers import Handler, is_async
from retry_topic.consumer.outcome import DeadLetter, Retry
from retry_topic.intake.taken import Taken
from retry_topic.intake.worker import IntakeWorker, Reading
from retry_topic.message import Message
from retry_topic.message.headers import read
from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.release.fair import share_topics
from retry_topic.service import RetryService, ServiceConfig
from retry_topic.testing.report import AttemptSeen, DeadSeen, HandlerRun, MessageSeen
from retry_topic.testing.stepped_consumer import SteppedConsumer
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.dispatcher.owner_loop import AT_ONCE, OwnerLoop
from wheel_sched.errors import ConfigError, NotDone
from wheel_sched.store import open_store
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.testing.virtual_clock import VirtualClock
from wheel_sched.testing.virtual_loop import VirtualEventLoop

GROUP = "test"
TOPIC = "messages"
YEAR_S = 31_536_000
_SWEEP_MS = 30 * 86_400_000  # no marker gets lost here
_TEXT_AT_MOST = 500


def run(
    handler: Handler,
    policy: RetryPolicy | PolicySet,
    messages: Sequence[bytes | Message],
    *,
    seed: int = 0,
    most_deliveries: int = 10_000,
    limit_s: float = YEAR_S,
) -> HandlerRun:
    """Give messages to a handler until each has ended, in virtual time: a week of backoff takes milliseconds.

    The handler runs in the calling thread, so it may use the test's own objects. An `async def` handler runs on an
    event loop in virtual time, where `asyncio.sleep` takes no real time. The handler's other clocks stay real.

    Args:
        handler: the function that gets each message, as from a `Consumer`: plain or `async def`.
        policy: decides when a failed message is retried. A `PolicySet` has a policy for each topic.
        messages: payloads, which go to the topic "messages", or `Message` objects, which go to their topics. The ids of
            the messages are m0, m1 and so on.
        seed: decides the jitter. Defaults to 0.
        most_deliveries: the run fails after so many calls of the handler. Defaults to 10,000.
        limit_s: the run fails after so many virtual seconds. Defaults to a year.

    Raises:
        ConfigError: an argument is wrong, or an event loop already runs in this thread. Nothing was run.
        NotDone: a message has not ended within `most_deliveries` or `limit_s`, or cannot end.
    """
    given = _checked(handler, policy, messages, seed, most_deliveries, limit_s)
    policies = PolicySet(policy) if isinstance(policy, RetryPolicy) else policy
    clock = VirtualClock()
    with contextlib.ExitStack() as stack:
        runner = None
        if is_async(handler):
            runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)))
        bench = _RunningHandler(handler, policies, given, clock, runner)
        stack.callback(bench.close)
        bench.seed(seed)
        bench.run(most_deliveries, limit_s)
        return bench.result()


class _RunningHandler:
    """One run: the parts of a system, the clock that they share, and what was seen."""

    def __init__(
        self,
        handler: Handler,
        policies: PolicySet,
        given: Sequence[Message],
        clock: VirtualClock,
        runner: asyncio.Runner | None,
    ) -> None:
        self._given, self._clock = given, clock
        self._handler = handler
        self._attempts: list[list[AttemptSeen]] = [[] for _ in given]
        self._ends: dict[int, Literal["dead", "superseded"]] = {}
        self._dead: list[DeadSeen] = []
        self._deliveries, self._most, self._until_s = 0, 0, 0.0
        self._stopped: BaseException | None = None  # an exception that ends the run, not only the attempt
        broker = MemoryBroker(create_topics=True, wall_ms=clock.wall_ms)
        self._store = open_store("memory:", test_clock=clock.wall_ms)
        self._broker = broker
        self._connection = connection = Connection(self._store, broker)
        topics = list(dict.fromkeys(message.topic for message in given)) or [TOPIC]
        watched = self._watched_async if runner is not None else self._watched
        self._consumer = SteppedConsumer(connection, topics, watched, GROUP, clock.wall_ms, runner)
        config = ServiceConfig(announce_ms=0, dispatcher=DispatcherConfig(sweep_ms=_SWEEP_MS))
        self._service = RetryService(connection, GROUP, policies, config=config, seen=self._seen)
        topic = self._retry_topic = config.group_topics.retry_of(GROUP)
        share_topics(self._store, policies, by_key=True)
        self._intake = IntakeWorker(broker, self._service.intake, Reading(topic, GROUP, 1, config.idle_ms, lambda: 0))
        self._marks: dict[int, bytes] = {}  # the last marker that the dispatcher has seen, by shard
        self._loop = OwnerLoop(
            self._store,
            self._service.dispatcher.publisher,
            clock=clock,
            config=config.dispatcher,
            listen=self._marks.update,
        )

    def seed(self, seed: int) -> None:
        """Let `seed` decide the jitter."""
        self._service.intake._rules.rng.seed(seed)

    def close(self) -> None:
        self._consumer.close()
        self._connection.close()

    # -- the run

    def run(self, most: int, limit_s: float) -> None:
        """Publish the messages, and repeat the steps until nothing waits."""
        self._most, self._until_s = most, self._now_s() + limit_s
        for number, message in enumerate(self._given):
            self._connection.publish(
                message.topic, message.value, key=message.key, headers=message.headers, id=f"m{number}"
            )
        while True:
            self._empty_topics()
            until_us = self._release()
            if self._in_topics():
                continue
            if not self._waiting():
                return
            self._move_to(until_us)

    def _empty_topics(self) -> None:
        """Let the consumer handle the messages of its topics, one at a time, until none is left.

        After each message, the intake takes in its failure, if there was one.
        """
        while self._in_topics():
            if self._unread(*self._consumer.reads):
                self._consumer.step_once()
                self._check_stopped()
            if before := self._unread(self._retry_topic):
                self._intake.step()
                if self._unread(self._retry_topic) == before:
                    raise NotDone("a failed message could not be taken in, the log says why; the run was stopped")

    def _release(self) -> int | None:
        """Let the dispatcher send what is due. Returns when it must look again, in microseconds."""
        backend = self._store.backend
        assert isinstance(backend, MemoryBackend)  # noqa: S101  # this run has opened it
        for shard, known in self._marks.items():
            if (mark := backend.shards[shard].mark).id != known:
                self._marks[shard] = mark.id
                self._loop.marked(shard, mark)
        while (until_us := self._loop.step()) == AT_ONCE:
            pass
        return until_us

    def _in_topics(self) -> int:
        return self._unread(self._retry_topic, *self._consumer.reads)

    def _unread(self, *topics: str) -> int:
        return sum(self._broker.backlog(topic, GROUP).waiting for topic in topics)

    def _waiting(self) -> int:
        counts = self._store.counts()
        return sum(counts.total(state) for state in ("due", "leased", "held"))

    def _move_to(self, until_us: int | None) -> None:
        if until_us is None:
            raise NotDone(f"messages wait for ever; the run was stopped\n{self.result()}")
        left_ns = until_us * 1_000 - self._clock.monotonic_ns()
        if until_us / 1e6 > self._until_s:
            raise self._too_long()
        self._clock.advance(max(left_ns, 1_000) / 1_000_000)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    # -- what the handler does

    def _watched(self, message: Message) -> Any:
        self._begin()
        began_s = self._now_s()
        try:
            value = self._handler(message)
        except BaseException as error:
            self._failed(message, began_s, error)
            raise
        self._returned(message, began_s, value)
        return value

    async def _watched_async(self, message: Message) -> Any:
        self._begin()
        began_s = self._now_s()
        awaitable: Awaitable[Any] = self._handler(message)
        limit = asyncio.timeout(max(0.0, self._until_s - began_s))
        try:
            async with limit:
                value = await awaitable
        except BaseException as error:
            if limit.expired():
                self._stopped = self._too_long()
            self._failed(message, began_s, error)
            raise
        self._returned(message, began_s, value)
        return value

    def _begin(self) -> None:
        if self._deliveries >= self._most:
            self._stopped = self._too_long()
            raise self._stopped
        self._deliveries += 1

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _too_long(self) -> NotDone:
        return NotDone(
            f"the messages have not ended after {self._deliveries} deliveries and {self._now_s():.0f} virtual seconds: "
            f"the run was stopped; give the policy a cap, or raise most_deliveries or limit_s\n{self.result()!r}"
        )

    def _returned(self, message: Message, began_s: float, value: Any) -> None:
        failed = isinstance(value, Retry | DeadLetter)
        self._note(message, began_s, "failed" if failed else "ok", repr(value) if failed else "")

    def _failed(self, message: Message, began_s: float, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._stopped = error  # Ctrl-C ends the whole run, not only this attempt
        if self._stopped is not error or isinstance(error, KeyboardInterrupt):
            self._note(message, began_s, "failed", _in_words(error))

    def _note(self, message: Message, began_s: float, outcome: Literal["ok", "failed"], error: str) -> None:
        state = read(message.headers)
        number = _number_of((message.header("retry-id") or b"").decode())
        self._attempts[number].append(AttemptSeen(state.attempt, began_s, "", outcome, error[:_TEXT_AT_MOST]))

    # -- what the intake decides

    def _seen(self, taken: Taken) -> None:
        number = _number_of(taken.id)
        attempts = self._attempts[number]
        last = attempts[-1] if attempts else None
        if taken.dead is not None:
            self._ends[number] = "dead"
            error = "" if last is None else last.error
            self._dead.append(DeadSeen(f"m{number}", self._given[number].value, taken.dead, error, self._now_s()))
        elif taken.superseded_by is not None:
            self._ends[number] = "superseded"
        if last is not None:
            due_s = None
            if taken.dead is None and taken.superseded_by is None and taken.due_ms is not None:
                due_s = (taken.due_ms - self._clock.wall_ms()) / 1_000 + self._clock.monotonic_ms() / 1_000
            attempts[-1] = AttemptSeen(last.number, last.began_s, "", last.outcome, last.error, due_s, taken.why)

    def result(self) -> HandlerRun:
        """What was seen so far."""
        messages = []
        for number, (message, attempts) in enumerate(zip(self._given, self._attempts, strict=True)):
            done = bool(attempts) and attempts[-1].outcome == "ok"
            end = "succeeded" if done else self._ends.get(number, "waiting")
            messages.append(MessageSeen(f"m{number}", message.value, 0.0, tuple(attempts), end))  # type: ignore[arg-type]
        return HandlerRun(tuple(messages), tuple(self._dead), self._now_s())


def _number_of(message_id: str) -> int:
    found = re.match(r"m(\d+)", message_id)
    if found is None:
        raise NotDone(f"expected an id of this run, got: {message_id[:80]!r}; the run was stopped")
    return int(found[1])


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # the handler's error may raise anything
        return "(the error cannot be described)"


def _checked(
    handler: object, policy: object, messages: object, seed: object, most: object, limit_s: object
) -> list[Message]:
    """The messages as `Message` objects. Raises ConfigError with all wrong arguments."""
    problems = [] if callable(handler) else [f"expected handler to be a function, got: {handler!r:.200}"]
    if not isinstance(policy, RetryPolicy | PolicySet):
        problems.append(f"expected policy to be a RetryPolicy or a PolicySet, got: {policy!r:.200}")
    if type(seed) is not int:
        problems.append(f"expected seed to be an int, got: {seed!r:.200}")
    if type(most) is not int or most < 1:
        problems.append(f"expected most_deliveries to be an int of at least 1, got: {most!r:.200}")
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not 0 < limit_s <= 100 * YEAR_S:
        problems.append(f"expected limit_s to be more than 0 and at most {100 * YEAR_S} seconds, got: {limit_s!r:.200}")
    given: list[Message] = []
    if isinstance(messages, bytes | bytearray | str) or not isinstance(messages, Sequence):
        problems.append(f"expected messages to be a list of bytes or Message objects, got: {messages!r:.200}")
    else:
        for number, one in enumerate(messages):
            if isinstance(one, Message):
                given.append(one)
            elif isinstance(one, bytes):
                given.append(Message(TOPIC, one))
            else:
                problems.append(f"expected message {number} to be bytes or a Message, got: {one!r:.200}")
    if not problems and is_async(handler) and _loop_runs():  # type: ignore[arg-type]
        problems.append("expected no running event loop: call run from a plain test function")
    if problems:
        raise ConfigError([f"{problem}; nothing was run" for problem in problems])
    return given


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
