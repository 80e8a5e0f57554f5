"""The decision cache (record templates that an intake has learnt) decides records exactly as the intake's plan does. It
decides all records as consumers usually write them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.connection import Connection
from retry_topic.consumer.retry_record import failed_message
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.plan import Plan, plan
from retry_topic.intake.records import Decided, IntakeRecord, Known, Rules
from retry_topic.intake.taken import Taken
from retry_topic.intake.templates import Prepared, Templates
from retry_topic.message import Headers, Message, Source
from retry_topic.message.headers import RetryState, attempts_key, read, replays_key, write
from retry_topic.policy import Decorrelated, Failure, Fixed, PolicySet, RetryPolicy, Rule, explain
from wheel_sched.store import AttemptCounts, DelayStore, Found, History, LogIntake, open_store
from wheel_sched.store.memory import MemoryBackend

T = TypeVar("T")

SOURCE = "g.retry/0"
NOW_MS = time.time_ns() // 1_000_000  # consumers write the present time
POLICIES = PolicySet(
    RetryPolicy(
        delay=Fixed(base_ms=60_000),
        max_attempts=9,
        rules=(
            Rule(errors=("TimeoutError",), name="slow", delay=Decorrelated(base_ms=2_000)),
            Rule(statuses=("4xx",), dead=True),
        ),
    ),
    {"other": RetryPolicy(name="other", delay=Fixed(base_ms=1_000), max_attempts=None, max_age_ms=3_600_000)},
)


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Reader:
    """A reader that reads nothing, because the test makes the batches."""

    def __init__(self) -> None:
        self.position: int | None = None

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        return None

    def done(self, part: LogBatch) -> None:
        self.position = part.next

    def expected(self) -> dict[str, int]:
        return {}

    def rewind(self, source: str, position: int | None) -> None:
        raise AssertionError(position)

    def beat(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Highest(random.Random):
    """A random generator that always draws the largest number. So delays do not depend on the number of
    earlier draws."""

    def randint(self, a: int, b: int) -> int:
        return b


def once(call: Callable[[], T]) -> T:
    return call()


def record(offset: int, headers: Headers, key: bytes | None = b"k", value: bytes = b"v") -> Message:
    return Message("g.retry", value, key, headers, Source("g.retry", 0, str(offset), 1))


def outcome(records: Sequence[Message], *, cached: bool, at_once: int = 4, **more: Any) -> tuple[Any, ...]:
    """Take in the records. Return everything that the store then has, and the reports."""
    store = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: NOW_MS).open()
    with Connection(store, Logs()) as connection:
        connection.broker.create_topic("g.dead")
        taking = IntakeFromLog(connection, "g", POLICIES, rng=Highest(), history=100, cached=cached, **more)
        reader = Reader()
        results: list[Taken] = []
        for start in range(0, len(records), at_once):
            part = records[start : start + at_once]
            deliveries = [Delivery(one, None) for one in part]
            results += taking.take(reader, LogBatch(SOURCE, reader.position, start + len(part), deliveries), once)
        found: list[Found] = []
        for state in ("due", "dead"):
            found += connection.store.list_items(state, limit=1_000).found  # type: ignore[arg-type]
        keys = [attempts_key(RetryState(id=read(one.headers).id), one) for one in records]
        attempts = AttemptCounts(connection.store).raise_to([(key, 0, 0) for key in keys])
        assert any(attempts) or more
        whys = [None if one.decision is None else explain(one.decision) for one in results]
        rows = History(connection.store).read(0).entries
        return (
            [replace(one, version=0) for one in found],
            attempts,
            [replace(one, decision=None) for one in results],
            whys,
            rows,
            LogIntake(connection.store).positions([SOURCE]),
        )


def _number(chance: random.Random) -> bytes:
    return b"%d" % chance.randrange(NOW_MS - 10_000_000, NOW_MS + 100_000)


def _text(chance: random.Random) -> bytes:
    return b"order %d" % chance.randrange(1_000)


SHARED: dict[str, tuple[bytes, ...]] = {
    "retry-attempt": (b"1", b"1", b"2", b"02", b"0", b"9"),
    "retry-original-topic": (b"orders", b"other", b"o" * 249),
    "retry-original-partition": (b"3",),
    "retry-error-class": (b"builtins.TimeoutError", b"ValueError"),
    "retry-error-fingerprint": (b"abc", b"def"),
    "retry-error-status": (b"503", b"503", b"404"),
    "retry-replays": (b"0", b"0", b"0", b"1"),
    "retry-verdict": (b"retry", b"retry", b"retry", b"dead", b"perhaps"),
    "retry-policy": (b"default@1", b"50%@2"),
    "retry-max": (b"9",),
    "retry-consumer-group": (b"g",),
    "value": (b"a header",),
}
MANY = (0, 1, 2, 15, 20)
ATTEMPT = b'[%d,1,"web-1:7","E",null,5,"p@1"]'
OWN: dict[str, Callable[[random.Random], bytes]] = {
    "retry-first-failed-at": _number,
    "retry-last-failed-at": _number,
    "retry-due-at": _number,
    "retry-started-at": _number,
    "retry-original-timestamp": _number,
    "retry-delay": lambda chance: b"%d" % chance.randrange(100_000),
    "retry-original-offset": _text,
    "retry-error-message": _text,
    "traceparent": _text,
    "100%": _text,
    "retry-process": _text,
    "retry-failed-attempts": lambda chance: b"\n".join(
        ATTEMPT % chance.randrange(9) for _ in range(chance.choice(MANY))
    ),
    "retry-traceback": lambda chance: b"Traceback\n  100%%, \xff\x00 %d" % chance.randrange(9) * chance.choice(MANY),
    "store-note:retry-traceback": _text,
}
ODD: tuple[bytes, ...] = (
    b"",
    b"x",
    b"-1",
    b"07",
    b"1_0",
    b"9" * 14,
    b"9" * 15,
    b"9" * 30,
    b"a\0b",
    b"\xff%d",
    b"e" * 260,
    b"e" * 1_200,
)
ODD += (b"5\n[1]", b"\xff" * 1_500, b"\n" * 3_000, b"x" * 5_000)


def records_by_chance(chance: random.Random) -> list[Message]:
    """Thirty records of two kinds in random order. Most are usual, and one in six has a malformed header."""
    kinds = []
    for _ in range(2):
        shared = {name: chance.choice(SHARED[name]) for name in SHARED if chance.random() < 0.5}
        own = [name for name in OWN if chance.random() < 0.6]
        names = ["retry-id", *shared, *own]
        chance.shuffle(names)
        kinds.append((names, shared, chance.choice((b"k", None))))
    records = []
    for offset in range(30):
        names, shared, key = chance.choice(kinds)
        headers = {name: shared[name] if name in shared else OWN.get(name, _text)(chance) for name in names}
        if chance.random() < 1 / 6:
            headers[chance.choice(names)] = chance.choice(ODD)
        pairs = [*headers.items()]
        if chance.random() < 1 / 20:
            pairs.append(chance.choice(pairs))  # the record has this header twice
        records.append(record(offset, tuple(pairs), key, _text(chance)))
    return records


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_the_cache_makes_of_records_what_the_plan_makes(seed: int) -> None:
    """With and without the cache, the store has equal items, counts and history, and the reports are equal."""
    records = records_by_chance(random.Random(seed))
    assert outcome(records, cached=True) == outcome(records, cached=False)


def usual(count: int, error: Callable[[int], str] = lambda n: f"order {n}: no answer") -> list[Message]:
    """Records of first failures, as consumers write them."""
    made = []
    for n in range(count):
        origin = Message("orders", b"%d" % n, b"k", (("traceparent", b"00-%032d" % n),), Source("orders", 1, str(n), 7))
        failure = Failure(error_class="builtins.OSError", error_mro=("builtins.Exception",), message=error(n))
        trace = f"Traceback (most recent call last):\n  100%, order {n}"
        written = failed_message("g", origin, RetryState(), failure, started_ms=1_000 + n, traceback=trace)
        made.append(replace(written, source=Source("g.retry", 0, str(n), 9)))
    return made


def failed_twice(records: Sequence[Message]) -> list[Message]:
    """Records of the second failures of these messages."""
    line = '[1,7,"h:1","E","order",60000,"default@1"]'
    again = [
        replace(read(one.headers), policy="default@1", due_ms=5, delay_ms=60_000, failed_attempts=line)
        for one in records
    ]
    failure = Failure(error_class="builtins.OSError", message="still not")
    return [
        replace(
            failed_message(
                "g",
                one.to("g.redelivery", write(one.headers, state)),
                state,
                failure,
                started_ms=9,
                traceback="Traceback (most recent call last):",
            ),
            source=one.source,
        )
        for one, state in zip(records, again, strict=True)
    ]


def planned(records: Sequence[Message], rules: Rules, templates: Templates | None, now_ms: int = NOW_MS) -> Plan:
    deliveries = [Delivery(one, None) for one in records]
    return plan(deliveries, Known(), now_ms, rules, templates=templates)


def rules_of(**more: Any) -> Rules:
    """The rules of a group whose retry topic is a log."""
    settings = {"origins": None, "spring": False, "secrets": (), "reference_above": 0, "rng": Highest()}
    return Rules("g", POLICIES, "g.redelivery", True, **(settings | more))


@pytest.mark.parametrize("hops", [1, 2])
def test_the_cache_decides_records_as_consumers_write_them(hops: int) -> None:
    """The cache decides all but the first three records, although each has its own trace, text and times."""
    records = usual(50) if hops == 1 else failed_twice(usual(50))
    made = planned(records, rules_of(), Templates(POLICIES, Highest()))
    assert [isinstance(one, Prepared) for one in made.entries] == [False] * 3 + [True] * 47
    plain = planned(records, rules_of(), None)
    assert (made.items, made.counts) == (plain.items, plain.counts)
    assert outcome(records, cached=True, at_once=10) == outcome(records, cached=False, at_once=10)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_plan_is_the_same_with_and_without_the_cache(seed: int) -> None:
    """Items, dead letters, counts, questions and reports are equal, whatever the headers say."""
    records = records_by_chance(random.Random(seed))
    made = planned(records, rules_of(), Templates(POLICIES, Highest()))
    plain = planned(records, rules_of(), None)
    assert made.questions == plain.questions
    assert (made.items, made.dead_letters, made.counts) == (plain.items, plain.dead_letters, plain.counts)
    assert [one.taken() for one in made.decided] == [one.taken() for one in plain.decided]
    whole = [one.decided() if isinstance(one, Prepared) else one for one in made.decided]
    assert [(one.member, one.record, one.item) for one in whole] == [
        (one.member, one.record, one.item) for one in plain.decided if isinstance(one, Decided)
    ]


def test_the_store_is_asked_about_a_dead_letter_alone() -> None:
    """A dead letter in a batch does not make the plan decide the other records again."""
    records = usual(20)
    state = replace(read(records[13].headers), verdict="dead")
    records[13] = replace(records[13], headers=write(records[13].headers, state))
    asking = planned(records, rules_of(), Templates(POLICIES, Highest()))
    assert asking.questions.keys == [replays_key(state.known_as), attempts_key(state, records[13])]
    assert [isinstance(one, IntakeRecord) for one in asking.entries] == [at == 13 for at in range(20)]
    known = Known(counts=dict.fromkeys(asking.questions.keys, 0))
    answered = plan(asking.entries, known, NOW_MS, rules_of())
    assert [one is other for one, other in zip(asking.entries, answered.entries, strict=True)].count(False) == 1
    assert [one.member for one in answered.dead] == [f"{state.id}.1"]
    assert outcome(records, cached=True, at_once=10) == outcome(records, cached=False, at_once=10)


@pytest.mark.parametrize("more", [{"secrets": (b"sixteen bytes ok",)}, {"spring": True}, {"reference_above": 1}])
def test_the_plan_itself_decides_what_the_cache_does_not_know(more: dict[str, Any]) -> None:
    """With signatures, with Spring's headers and with payloads stored as references, the results with and without the
    cache are equal."""
    records = [replace(one, value=b"12") for one in usual(6)]
    assert outcome(records, cached=True, **more) == outcome(records, cached=False, **more)


def test_other_policies_make_other_templates() -> None:
    """When the policies change, the cache drops the templates of the old policies."""
    with Connection(open_store("memory:"), Logs()) as connection:
        taking, reader = IntakeFromLog(connection, "g", POLICIES, rng=random.Random(1)), Reader()
        records = usual(9)
        for start in range(0, 9, 3):
            deliveries = [Delivery(one, None) for one in records[start : start + 3]]
            part = LogBatch(SOURCE, reader.position, start + 3, deliveries)
            taken = taking.take(reader, part, once)
            wanted = "default@1" if start < 6 else "new@1"
            assert {one.decision.why.policy for one in taken if one.decision} == {wanted}
            if start == 3:
                taking.policies = PolicySet(RetryPolicy(name="new"))


@pytest.mark.slow
def test_what_the_cache_learns_is_bounded() -> None:
    """After thousands of different records the cache is not larger than its limit."""
    templates = Templates(POLICIES, random.Random(1))
    states = [RetryState(id="a", attempt=1, original_topic="orders", error_fingerprint=f"f{n}") for n in range(10_000)]
    planned([record(n, write((), state)) for n, state in enumerate(states)], rules_of(), templates)
    assert templates.seen <= 4_096
    assert len(templates) == 0
