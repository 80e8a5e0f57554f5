"""The intake's plan contains its decisions about a batch and its questions to the store. The intakes from queue and log
decide the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.connection import Connection
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.intake.plan import Plan, plan
from retry_topic.intake.records import (
    MAX_BODY_BYTES,
    Decided,
    IntakeRecord,
    Known,
    Rules,
    Taken,
)
from retry_topic.message import Message, Source
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import MAX_COUNT, RetryState, attempts_key, read, replays_key, write
from retry_topic.policy import Fixed, PolicySet, RetryPolicy, Rule, explain
from wheel_sched.store import ENDED, DelayStore, Found
from wheel_sched.store.attempt_counts import AttemptCounts
from wheel_sched.store.core.items import Item
from wheel_sched.store.memory import MemoryBackend

T = TypeVar("T")

NOW_MS = time.time_ns() // 1_000_000
SECRET = b"sixteen bytes ok"
LOCK = f"{'s' * 12}.{'k' * 16}"
POLICIES = PolicySet(
    RetryPolicy(delay=Fixed(base_ms=60_000), max_attempts=4, rules=(Rule(statuses=("4xx",), dead=True),)),
    {"other": RetryPolicy(name="other", delay=Fixed(base_ms=1_000), max_attempts=None, max_age_ms=3_600_000)},
)


def rules_of(*, from_log: bool, **more: Any) -> Rules:
    given: dict[str, Any] = {"origins": None, "spring": False, "secrets": (), "reference_above": 0}
    return Rules("g", POLICIES, "g.redelivery", from_log, rng=random.Random(1), **(given | more))


def failed(name: str | None = "m", attempt: int = 1, **more: Any) -> RetryState:
    return RetryState(**({"id": name, "attempt": attempt, "original_topic": "orders", "error_class": "E"} | more))


def delivery(state: RetryState, value: bytes = b"v", offset: int = 0, deliveries: int = 1) -> Delivery:
    return Delivery(
        Message("g.retry", value, b"k", write((), state), Source("g.retry", 0, str(offset), 1)), None, deliveries
    )


def answered(rules: Rules, *deliveries: Delivery, counts: dict[str, int] | None = None, items: Any = None) -> Plan:
    """Plan until no question is open. The store answers with these counts and items."""
    known = Known(ask=True)
    made = plan([rules.read(one) for one in deliveries], known, NOW_MS, rules)
    while made.questions:
        known.counts.update((key, (counts or {}).get(key, 0)) for key in made.questions.keys)
        known.items.update((member, (items or {}).get(member)) for member in made.questions.ids)
        known.origins.update(made.questions.topics)
        made = plan(made.entries, known, NOW_MS, rules)
    return made


def found(one: Delivery, member: str, state: Any = "due") -> Found:
    return Found(member, state, NOW_MS, 1, "orders", encode_body(one.message.to("g.redelivery")), "", (), None)


def key_of(state: RetryState, value: bytes = b"v") -> str:
    return attempts_key(state, Message("g.retry", value, b"k"))


BOTH = pytest.mark.parametrize("from_log", [False, True], ids=["queue", "log"])


@BOTH
@pytest.mark.parametrize(
    ("claimed", "counted", "attempt"), [(1, 2, 3), (0, 1, 2), (3, 1, 3), (MAX_COUNT, 0, MAX_COUNT)]
)
def test_no_header_lowers_a_count(from_log: bool, claimed: int, counted: int, attempt: int) -> None:
    """The larger of the header's count and the store's count holds. Too large a count in a header harms only its
    sender."""
    made = answered(rules_of(from_log=from_log), delivery(failed("m", claimed)), counts={key_of(failed()): counted})
    (taken,) = [one.taken() for one in made.decided]
    assert (taken.attempt, taken.dead) == (attempt, "max-attempts" if attempt >= 4 else None)


@BOTH
def test_the_store_says_how_often_a_message_was_replayed(from_log: bool) -> None:
    """The store's replay count holds, not the header's. Attempts are counted from that replay on."""
    made = answered(
        rules_of(from_log=from_log),
        delivery(failed("m", 1, replays=9)),
        counts={"m!": 2, key_of(failed("m", replays=2)): 1},
    )
    assert [one.taken().id for one in made.decided] == ["mr2.2"]


@BOTH
def test_a_copy_of_a_counted_attempt_stores_nothing(from_log: bool) -> None:
    """A record with a start time comes from a consumer that counts attempts. If the store has counted the attempt
    already, the plan lists the record as a copy."""
    made = answered(rules_of(from_log=from_log), delivery(failed(started_ms=1)), counts={key_of(failed()): 1})
    assert (made.items, made.dead_letters, made.counts) == ([], [], [])
    assert [(one.duplicate, one.ended) for one in made.copies] == [(True, False)]


@BOTH
def test_a_message_that_has_ended_is_neither_retried_nor_dead(from_log: bool) -> None:
    """The message of a record has ended. The plan lists the record as a copy with its key lock, so that the intake can
    unlock the ordering key."""
    made = answered(
        rules_of(from_log=from_log), delivery(failed(attempt=9, key_lock=LOCK)), counts={key_of(failed()): ENDED}
    )
    assert (made.items, made.dead) == ([], [])
    assert [(one.key_lock, one.head, one.ended) for one in made.copies] == [(LOCK, "m", True)]


@BOTH
def test_the_very_message_in_the_store_is_known(from_log: bool) -> None:
    """A record of the stored message is a duplicate. Another message under the same id counts as one more attempt."""
    first, other = delivery(failed()), delivery(failed(), b"other")
    counts = {key_of(failed()): 1, key_of(failed(), b"other"): 1}
    there = {"m.1": found(first, "m.1")}
    made = answered(rules_of(from_log=from_log), first, other, counts=counts, items=there)
    assert [(one.taken().id, one.duplicate) for one in made.decided] == [("m.1", True), ("m.2", False)]


@pytest.mark.parametrize("repeated", [False, True])
def test_the_dead_topic_gets_a_dead_letter_again_that_a_queue_repeats(repeated: bool) -> None:
    """If the broker delivers a record again, its dead letter may not have been sent, so the plan sends it again. A new
    record of the same failure is a duplicate."""
    one = delivery(failed(attempt=4), deliveries=1 + repeated)
    counts, items = {key_of(failed()): 4}, {"m.4": found(one, "m.4", "dead")}
    made = answered(rules_of(from_log=False), one, counts=counts, items=items)
    assert [each.duplicate for each in made.decided] == [not repeated]
    assert len(made.dead) == repeated


def test_a_record_of_a_queue_that_was_taken_in_is_known() -> None:
    """The store knows the record by its place in the topic, even after its message was sent."""
    rules = rules_of(from_log=False)
    record = rules.read(delivery(failed()))
    made = answered(rules, record.delivery, counts={record.record_key: 1, key_of(failed()): 1})
    assert [one.duplicate for one in made.decided] == [True]


@BOTH
def test_equal_records_are_one_failure_and_others_get_an_id_of_their_own(from_log: bool) -> None:
    """Two equal records in one batch are one failure. Another record with their id gets an id of its own."""
    records = [delivery(failed(), b"a", 0), delivery(failed(), b"a", 1), delivery(failed(), b"b", 2)]
    rules = rules_of(from_log=from_log)
    made = answered(rules, *records)
    own = rules.read(records[2]).own_id
    assert [(one.taken().id, one.duplicate) for one in made.decided] == [
        ("m.1", False),
        ("m.1", True),
        (f"{own}.1", False),
    ]
    assert [(one.member, one.head) for one in made.renamed] == [(f"{own}.1", "m")]


def test_a_log_asks_nothing_about_usual_records() -> None:
    """The plan for a log has no questions about usual records, because the store compares the counts when it stores the
    batch."""
    made = plan([delivery(failed(f"m{n}", 3)) for n in range(9)], Known(), NOW_MS, rules_of(from_log=True))
    assert not made.questions
    assert made.counts[:2] == [(key_of(failed("m0")), 3, made.decided[0].keep_until_ms), ("m0!", 0, None)]


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
def test_headers_alone_kill_nobody(secrets: tuple[bytes, ...]) -> None:
    """The plan for a log asks for the counts of records whose headers make them dead, and of unsigned records."""
    rules = rules_of(from_log=True, secrets=secrets)
    made = plan([delivery(failed("a", 9)), delivery(failed("b"))], Known(), NOW_MS, rules)
    asked = [one for one in made.entries if isinstance(one, IntakeRecord)]
    assert [read(one.delivery.message.headers).id for one in asked] == (["a", "b"] if secrets else ["a"])
    assert made.questions.keys == [
        key for one in asked for key in (replays_key(one.state.known_as), attempts_key(one.state, one.delivery.message))
    ]
    assert (made.items, made.dead_letters) == ([], [])


def test_a_queue_asks_for_every_count_first() -> None:
    """The plan for a queue asks for all counts and decides nothing before the answers."""
    rules = rules_of(from_log=False)
    record = rules.read(delivery(failed()))
    made = plan([record], Known(ask=True), NOW_MS, rules)
    assert made.questions.keys == ["m!", key_of(failed()), record.record_key]
    assert made.entries == [record]


@BOTH
def test_records_that_nobody_signed_share_one_count(from_log: bool) -> None:
    """Unsigned records with the same payload share one attempt count, up to the smallest `max_attempts` of all
    policies."""
    rules = rules_of(from_log=from_log, secrets=(SECRET,))
    made = answered(rules, *(delivery(failed(f"m{n}", 1, original_topic="other"), offset=n) for n in range(5)))
    assert [(one.taken().attempt, one.taken().dead) for one in made.decided] == [
        *((n, None) for n in (1, 2, 3)),
        *((n, "max-attempts") for n in (4, 5)),
    ]


@BOTH
def test_a_topic_that_nobody_may_return_to_is_asked_for_and_refused(from_log: bool) -> None:
    """A record whose original topic is not allowed becomes a dead letter. A message of an allowed topic
    returns there."""
    rules = rules_of(from_log=from_log, origins={"orders"})
    known = Known(ask=True)
    records = [
        rules.read(delivery(failed(name, original_topic=topic))) for name, topic in (("a", "orders"), ("b", "x"))
    ]
    for record in records:
        known.counts |= {"a!": 0, "b!": 0, record.record_key: 0, attempts_key(record.state, record.delivery.message): 0}
    asking = plan(records, known, NOW_MS, rules)
    assert (asking.questions.topics, asking.questions.keys) == (["x"], [])
    known.origins.add("x")
    made = plan(asking.entries, known, NOW_MS, rules)
    assert [decode_body(one.body).topic for one in made.items] == ["orders"]
    assert [one.dead for one in made.dead] == ["unknown-origin"]


@BOTH
def test_a_message_that_the_store_cannot_hold_is_a_dead_letter(from_log: bool) -> None:
    """A message whose body is too large becomes a dead letter, which keeps the whole payload."""
    made = answered(rules_of(from_log=from_log), delivery(failed(), b"x" * (MAX_BODY_BYTES + 1)))
    assert (made.items, [one.dead for one in made.dead]) == ([], ["oversized"])
    (message,) = [one.message for one in made.dead]
    assert message is not None
    assert len(message.value) == MAX_BODY_BYTES + 1


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Ignoring:
    """A reader or consumer that ignores calls."""

    def done(self, part: LogBatch) -> None: ...

    def rewind(self, source: str, position: int | None) -> None:
        raise AssertionError(position)

    def ack(self, deliveries: Iterable[Delivery]) -> None: ...

    def forward(self, pairs: Iterable[Any]) -> list[None]:
        return [None for _ in pairs]


STATES = st.builds(
    failed,
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(0, 5),
    replays=st.sampled_from([0, 0, 0, 1]),
    original_topic=st.sampled_from(["orders", "other"]),
    error_status=st.sampled_from([None, 404, 503]),
    verdict=st.sampled_from([None, None, "retry", "dead"]),
    started_ms=st.sampled_from([None, 1]),
    retry_after_ms=st.sampled_from([None, 5_000]),
)
BATCHES = st.lists(
    st.lists(STATES.map(lambda state: (state, f"{state.id}".encode())), min_size=1, max_size=5), max_size=4
)


def carried_out(
    batches: list[list[tuple[RetryState, bytes]]], take: Callable[[Connection, list[Delivery], int], list[Taken]]
) -> Any:
    """Take in the batches. Return everything that is then stored and reported."""
    store = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: NOW_MS).open()
    with Connection(store, Logs()) as connection:
        connection.broker.create_topic("g.dead")
        results: list[Taken] = []
        place = 0
        for batch in batches:
            deliveries = [delivery(state, value, place + n) for n, (state, value) in enumerate(batch)]
            place += len(batch)
            results += take(connection, deliveries, place)
        items = [*store.list_items("due", limit=1_000).found, *store.list_items("dead", limit=1_000).found]
        keys = {key_of(state, value) for batch in batches for state, value in batch}
        counts = AttemptCounts(store).raise_to([(key, 0, 0) for key in sorted(keys)])
        whys = [None if one.decision is None else explain(one.decision) for one in results]
        return (
            counts,
            [(one.id, one.state, one.score_ms, one.topic, one.body, one.reason, one.refs) for one in items],
            [None if one.duplicate else (one.id, one.attempt, one.due_ms, one.dead) for one in results],
            whys,
        )


@settings(deadline=None, max_examples=50)
@given(BATCHES)
def test_a_queue_and_a_log_carry_out_the_same_decisions(batches: list[list[tuple[RetryState, bytes]]]) -> None:
    """For the same failures, both intakes store equal items, dead letters and counts, and report the same."""

    def from_queue(connection: Connection, deliveries: list[Delivery], _: int) -> list[Taken]:
        intake = IntakeFromQueue(connection, "g", POLICIES, rng=random.Random(1))
        return intake.take(Ignoring(), deliveries)  # type: ignore[arg-type]

    def from_log(connection: Connection, deliveries: list[Delivery], place: int) -> list[Taken]:
        part = LogBatch("g.retry/0", place - len(deliveries) or None, place, deliveries)
        intake = IntakeFromLog(connection, "g", POLICIES, rng=random.Random(1))
        return intake.take(Ignoring(), part, lambda call: call())  # type: ignore[arg-type]

    assert carried_out(batches, from_queue) == carried_out(batches, from_log)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(STATES, st.sampled_from([b"v", b"w"])), max_size=8))
def test_by_the_same_knowledge_both_plan_the_same(batch: list[tuple[RetryState, bytes]]) -> None:
    """With the same records and the same answers, the plans for a queue and for a log are equal."""
    deliveries = [delivery(state, value, n) for n, (state, value) in enumerate(batch)]
    counts = {key_of(failed("a"), b"v"): 1, key_of(failed("b"), b"w"): ENDED, "c!": 1}
    plans = [answered(rules_of(from_log=from_log), *deliveries, counts=counts) for from_log in (False, True, True)]
    queue, log, again = [
        (one.items, one.dead_letters, [each.taken() for each in one.decided], [each.member for each in one.copies])
        for one in plans
    ]
    assert queue == log == again


def test_a_decided_entry_stays_as_it_is() -> None:
    """A second plan decides only the records with open questions."""
    rules = rules_of(from_log=True)
    asking = plan([delivery(failed("a")), delivery(failed("b", 9))], Known(), NOW_MS, rules)
    kept = asking.entries[0]
    assert isinstance(kept, Decided)
    made = plan(asking.entries, Known(counts=dict.fromkeys(asking.questions.keys, 0)), NOW_MS + 5_000, rules)
    assert made.entries[0] is kept
    assert isinstance(kept.item, Item)
    assert kept.item.due_ms == NOW_MS + 60_000
