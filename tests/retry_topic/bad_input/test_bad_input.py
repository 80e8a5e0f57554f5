"""Malformed input: it is refused with a clear error or put into quarantine, and all other messages are processed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import DeadLetters, RetryPolicy
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from wheel_sched.errors import Rejected
from wheel_sched.store import Item, encode_push

if TYPE_CHECKING:
    import redis
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
RETRY, BACK, DEAD = retry_topic_of("billing"), redelivery_topic_of("billing"), dead_topic_of("billing")
MIB = 1024 * 1024
FAILED = write((), RetryState(attempt=1, original_topic="orders"))


def harmless(bench: Bench, handler: Handlers, policy: Policy, **service: Any) -> Callable[[], None]:
    """Start a consumer and a retry service. The returned function checks that a message that fails once is retried."""
    handle = handler(lambda message: None if read(message.headers).attempt else _raise())
    bench.serve(policy(), **service)
    bench.consume(handle)

    def check() -> None:
        before = handle.values.count(b"harmless")
        bench.publish(b"harmless")
        bench.until(lambda: handle.values.count(b"harmless") == before + 2)

    return check


def _raise() -> None:
    raise ValueError("first")


# -- bodies in the store

JUNK = {
    "empty": b"",
    "text": b"hello",
    "half a form": b"S1[5,5",
    "wrong lengths": b"S1[6,5,100]ordersvaluem",
    "no pairs": b"S1[6,5]ordersvalue",
    "a list": encode_push("L", "orders", [b"m"]),
    "another version": b"S2[6,5,1]ordersvaluem",
    "huge numbers": b"S1[99999999999999999999,5,1]ordersvaluem",
    "binary": bytes(range(256)),
    "deep": b"S1[" + b"[" * 5_000,
}


@pytest.mark.parametrize("hand_over", ["auto", "settle"])
def test_undecodable_bodies_are_parked_and_the_others_flow(
    bench: Bench, handler: Handlers, policy: Policy, hand_over: str
) -> None:
    """An item whose body is no encoded message is held in quarantine. Other messages are retried as usual."""
    check = harmless(bench, handler, policy, hand_over=hand_over)
    bench.connection.broker.create_topic("orders")
    pushable = hand_over == "auto" and bench.connection.push_target() is not None
    junk = {name: body for name, body in JUNK.items() if name != "a list" or not pushable}
    bench.connection.store.schedule([Item(name, 0, body, "orders") for name, body in junk.items()])
    check()
    bench.until(lambda: bench.connection.store.counts().total("held") == len(junk))
    for found in bench.connection.store.list_items("held").found:
        assert found.reason.startswith("quarantine: "), found
        assert found.body == junk[found.id]
    check()


def test_garbage_of_any_kind_stops_nothing(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The store gets two hundred random or damaged bodies. None of them keeps waiting, and other
    messages are retried."""
    check = harmless(bench, handler, policy)
    rng = random.Random(7)
    good = encode_body(Message("orders", b"payload", b"key", FAILED))
    bodies = [rng.randbytes(rng.randrange(60)) for _ in range(100)]
    for _ in range(100):
        at = rng.randrange(len(good))
        bodies.append(good[:at] if rng.random() < 0.5 else good[:at] + rng.randbytes(1) + good[at + 1 :])
    bench.connection.store.schedule([Item(f"junk-{n}", 0, body, "orders") for n, body in enumerate(bodies)])
    check()
    bench.until(lambda: bench.waiting() == 0)


@pytest.mark.parametrize("body", JUNK.values(), ids=JUNK)
def test_a_body_that_is_no_message_is_rejected_by_name(body: bytes) -> None:
    """For a body that is no message, `decode_body` raises `Rejected`. The error has the size of the body and says that
    nothing was changed."""
    with pytest.raises(Rejected, match=f"{len(body)} bytes.*; nothing was changed"):
        decode_body(body)


@pytest.mark.real
@pytest.mark.parametrize(
    "record", [b"2:1:6:0:0:ordersbody", b"", b"\xff\xfe", b"1:x:6:0:0:ordersbody", b"1:1:999999:0:0:short"]
)
def test_a_record_of_another_version_is_set_aside(
    server: Bench, handler: Handlers, policy: Policy, redis_client: redis.Redis, record: bytes
) -> None:
    """An item in an unknown or newer format goes into quarantine. Other messages are retried as usual."""
    check = harmless(server, handler, policy)
    server.connection.store.schedule([Item("strange", server.connection.store.now_ms() + 600, b"x", "orders")])
    assert redis_client.hset("{wheel:0}:body", "strange", record) == 0
    check()
    server.until(lambda: [one.state for one in server.connection.store.get(["strange"]) if one] in (["dead"], ["held"]))
    (found,) = server.connection.store.get(["strange"])
    assert found is not None
    assert "quarantine" in found.reason
    check()


# -- retry records of other writers

STRANGE: dict[str, tuple[tuple[str, bytes], ...]] = {
    "no headers": (),
    "foreign headers": (("content-type", b"application/json"),),
    "all garbage": tuple((f"retry-{name}", b"\xff\x00\n") for name in ("id", "attempt", "due-at", "policy", "max")),
    "all empty": tuple((f"retry-{name}", b"") for name in ("id", "attempt", "first-failed-at", "original-topic")),
    "a megabyte of id": (("retry-id", b"x" * MIB),),
    "the longest id": (("retry-id", b"x" * 250), ("retry-attempt", b"1")),
    "the longest topic": (("retry-original-topic", b"t" * 250), ("retry-attempt", b"1")),
    "the longest fingerprint": (("retry-error-fingerprint", b"f" * 250), ("retry-verdict", b"dead")),
    "a wild topic": (("retry-original-topic", "no/such {topic} ü".encode()), ("retry-attempt", b"1")),
    "the end of time": (("retry-first-failed-at", b"253402300799999"), ("retry-after", b"9" * 18)),
    "before all time": (("retry-first-failed-at", b"0"), ("retry-attempt", b"0")),
    "repeated": (("retry-attempt", b"5"), ("retry-attempt", b"x"), ("retry-id", b"a"), ("retry-id", b"")),
    "a huge message": (("retry-error-message", b"e" * MIB), ("retry-error-class", b"c" * MIB)),
    "spring garbage": (
        ("retry_topic-attempts", b"\x00" * 50),
        ("kafka_original-offset", b""),
    ),
    "a name like ours": (("retry-unknown-thing", b"1"), ("RETRY-ID", b"x"), ("retry-id ", b"y")),
}


@pytest.mark.parametrize("secrets", [(), (b"sixteen bytes ok",)], ids=["plain", "signed"])
@pytest.mark.parametrize("redelivery", ["group", "origin"])
def test_no_strange_record_is_lost_or_stops_the_others(
    bench: Bench, policy: Policy, redelivery: str, secrets: tuple[bytes, ...]
) -> None:
    """Each malformed retry record becomes a waiting item or a dead letter, exactly once. None blocks the
    retry topic."""
    bench.serve(policy(base_ms=3_600_000), redelivery=redelivery, secrets=secrets)
    for name, headers in STRANGE.items():
        bench.publish(name.encode(), topic=RETRY, headers=headers)
    bench.until(lambda: len(bench.taken) >= len(STRANGE), lambda: [one.id for one in bench.taken])
    store = bench.connection.store
    kept = [*store.list_items("due").found, *store.list_items("dead").found]
    assert sorted(decode_body(found.body).value for found in kept) == sorted(name.encode() for name in STRANGE)
    assert bench.unsettled(RETRY) == []
    for found in kept:
        message = decode_body(found.body)
        own = [pair for pair in message.headers if not pair[0].startswith("retry-") or pair[0] == "retry-unknown-thing"]
        sent = STRANGE[message.value.decode()]
        assert [pair for pair in sent if not pair[0].startswith("retry-") or pair[0] == "retry-unknown-thing"] == own


@pytest.mark.parametrize("count", [1_400, 1_490, 1_495, 1_500, 1_700, 1_745])
def test_more_headers_than_can_wait_make_a_dead_letter(
    bench: Bench, handler: Handlers, policy: Policy, count: int
) -> None:
    """A record with more headers than the store can hold is written to the dead topic with all its headers. The dead
    letter has the reason. Records with fewer headers are retried."""
    headers = tuple((f"h{n}", b"%d" % n) for n in range(count))
    handle = handler(lambda message: None if message.value == b"m" and read(message.headers).attempt else _raise())
    bench.serve(policy(max_attempts=2))
    consumer = bench.consume(handle)
    bench.publish(b"m", headers=headers)
    bench.publish(b"after")
    bench.until(lambda: consumer.stats.acknowledged == 1 or len(bench.letters()) == 2)
    letters = {letter.reason.split(":")[0]: letter for letter in bench.dead(1 + (consumer.stats.acknowledged == 0))}
    if "unstorable" in letters:
        assert "fields fit into one entry" in letters["unstorable"].reason
        # the dead letter is in the store first, then in the dead topic
        bench.until(lambda: any(record.value == b"m" for record in bench.records(DEAD)))
        (record,) = [record for record in bench.records(DEAD) if record.value == b"m"]
        assert tuple(pair for pair in record.headers if not pair[0].startswith("retry-")) == headers
    else:
        (retry,) = [call.message for call in handle.calls if call.message.value == b"m" and call.attempt == 2]
        assert tuple(pair for pair in retry.headers if not pair[0].startswith("retry-")) == headers
    assert ("unstorable" in letters) == (count > 1_480)


@pytest.mark.parametrize("size", [8 * MIB - 2_000, 8 * MIB + 1, 17 * MIB])
def test_a_payload_that_is_too_large_to_wait_is_a_dead_letter(
    bench: Bench, handler: Handlers, policy: Policy, size: int
) -> None:
    """A payload over 8 MiB is written whole to the dead topic. A smaller one is stored and retried unchanged."""
    value = bytes([7]) * size
    handle = handler(lambda message: None if read(message.headers).attempt else _raise())
    bench.serve(policy())
    consumer = bench.consume(handle)
    bench.publish(value)
    if size < 8 * MIB:
        bench.until(lambda: consumer.stats.acknowledged == 1)
        assert handle.values == [value, value]
        return
    (letter,) = bench.dead()
    assert letter.reason.startswith("oversized" if size < 16 * MIB else "unstorable: ")
    assert letter.message is None or letter.message.value == value
    bench.until(lambda: len(bench.records(DEAD)) == 1)
    assert bench.records(DEAD)[0].value == value
    bench.publish(b"small")
    bench.until(lambda: consumer.stats.acknowledged == 1)


@pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256))])
@pytest.mark.parametrize("key", [None, b"", b"\x00\xff"])
def test_empty_and_binary_payloads_and_keys_survive(
    bench: Bench, handler: Handlers, policy: Policy, value: bytes, key: bytes | None
) -> None:
    """A retried message has the same payload and key. A missing key and an empty key are different."""
    handle = handler(ValueError("x"), None)
    bench.serve(policy())
    bench.consume(handle)
    bench.publish(value, key=key)
    bench.until(lambda: len(handle.calls) == 2)
    assert [(call.message.value, call.message.key) for call in handle.calls] == [(value, key)] * 2


# -- topics that are not there


@pytest.mark.parametrize("hand_over", ["auto", "settle"])
def test_an_unknown_topic_at_dispatch_is_a_dead_letter(
    bench: Bench, handler: Handlers, policy: Policy, hand_over: str
) -> None:
    """Only the message for the unknown topic becomes a dead letter. Once the topic exists, a replay delivers the
    message."""
    check = harmless(bench, handler, policy, hand_over=hand_over)
    bench.connection.store.schedule([Item("lost", 0, encode_body(Message("nowhere", b"m", b"k")), "nowhere")])
    (letter,) = bench.dead()
    assert "unknown topic" in letter.reason
    assert letter.message is not None
    assert (letter.message.topic, letter.message.value) == ("nowhere", b"m")
    check()
    bench.connection.broker.create_topic("nowhere")
    assert DeadLetters(bench.connection).replay().replayed == 1
    bench.until(lambda: [record.value for record in bench.records("nowhere")] == [b"m"])


@pytest.mark.real
def test_a_target_that_is_no_stream_is_a_dead_letter(
    server: Bench, handler: Handlers, policy: Policy, redis_client: redis.Redis
) -> None:
    """If the topic's key in Redis is not a stream, the message becomes a dead letter with that reason. Other messages
    are retried."""
    check = harmless(server, handler, policy)
    redis_client.set("taken", "by somebody")
    server.connection.store.schedule([Item("lost", 0, encode_body(Message("taken", b"m")), "taken")])
    (letter,) = server.dead()
    assert "is no stream" in letter.reason
    check()


@pytest.mark.real
@pytest.mark.parametrize("deleted", [RETRY, BACK, DEAD, "orders"])
def test_a_topic_of_ours_that_was_deleted_comes_back(
    server: Bench, handler: Handlers, policy: Policy, redis_client: redis.Redis, deleted: str
) -> None:
    """The test deletes a topic while consumer and service run. Later messages are retried or dead-lettered as usual."""
    handle = handler(lambda message: None if message.value == b"ok" and read(message.headers).attempt else _raise())
    server.serve(policy(max_attempts=2, base_ms=100), idle_ms=300)
    consumer = server.consume(handle, idle_ms=300)
    server.publish(b"ok")
    server.until(lambda: consumer.stats.acknowledged == 1)
    redis_client.delete(deleted)
    server.until(lambda: server.connection.broker.create_topic("orders") is None)
    server.publish(b"ok", b"bad")
    server.until(lambda: consumer.stats.acknowledged == 2 and len(server.letters()) == 1, server.letters)
    server.until(lambda: [record.value for record in server.records(DEAD)] == [b"bad"])


@pytest.mark.real
def test_stream_entries_of_other_producers_are_read(
    server: Bench, handler: Handlers, policy: Policy, redis_client: redis.Redis
) -> None:
    """The intake reads stream entries with unknown fields and without a `value` field."""
    check = harmless(server, handler, policy)
    server.connection.broker.create_topic(RETRY)
    redis_client.xadd(RETRY, {b"foo": b"bar"})
    redis_client.xadd(RETRY, {b"\xff\xfe": b"\x00", b"retry-attempt": b"1", b"retry-original-topic": b"orders"})
    server.until(lambda: len(server.taken) >= 2)
    check()
