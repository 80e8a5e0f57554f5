"""`publish`, now and later: on time, never early, once per id. Wrong arguments are refused before anything is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import DeadLetters, RetryPolicy, connect
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.connection import Connection
from retry_topic.consumer.retry_record import failed_message, retry_state
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import read, without_ours
from retry_topic.policy import Failure
from wheel_sched.errors import BrokerError, BrokerUnavailable, Rejected, UnknownTopic
from wheel_sched.store import Outcome

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
TOPIC = "orders"


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """A bench whose topic exists."""
    bench.connection.broker.create_topic(TOPIC)
    return bench


def waiting(bench: Bench) -> list[tuple[str, int]]:
    return [(found.id, found.score_ms) for found in bench.connection.store.list_items("due").found]


def nothing_sent(bench: Bench) -> bool:
    return bench.records(TOPIC) == [] and waiting(bench) == [] and bench.connection.store.counts().ever == {}


def test_a_message_without_delay_goes_at_once(ready: Bench) -> None:
    """A message without delay arrives byte for byte, with its id, and is never in the store."""
    message_id = ready.connection.publish(TOPIC, b"\x00m", key=b"\xff", headers=(("a", b"1"), ("a", b"2")))
    (record,) = ready.records(TOPIC)
    headers = (("a", b"1"), ("a", b"2"), ("retry-id", message_id.encode()))
    assert (record.value, record.key, record.headers) == (b"\x00m", b"\xff", headers)
    assert ready.connection.store.counts().ever == {}


def test_a_delayed_message_arrives_on_time_and_never_early(bench: Bench, handler: Handlers) -> None:
    """The handler gets each message after its delay and at most 5 s later, with the same key and headers."""
    handle = handler()
    bench.serve()
    bench.consume(handle)
    started_ms = bench.connection.store.now_ms()
    for n in range(20):
        bench.connection.publish(TOPIC, b"%d" % n, key=b"k", headers=(("n", b"%d" % n),), delay=0.02 * n)
    bench.until(lambda: len(handle.calls) == 20)
    for call in handle.calls:
        n = int(call.message.value)
        assert call.at_ms - started_ms >= 20 * n
        assert call.at_ms - started_ms < 20 * n + 5_000
        assert (call.message.key, without_ours(call.message.headers)) == (b"k", (("n", b"%d" % n),))


@pytest.mark.parametrize("delay", [0.0011, timedelta(microseconds=1_100), 0.002])
def test_a_due_is_rounded_up(ready: Bench, delay: Any) -> None:
    """Both the delay and the present time are rounded up to whole milliseconds."""
    before_ms = ready.connection.store.now_ms()
    ready.connection.publish(TOPIC, b"m", delay=delay)
    after_ms = ready.connection.store.now_ms()
    ((_, due_ms),) = waiting(ready)
    assert before_ms + 3 <= due_ms <= after_ms + 3


def test_at_is_the_instant_in_any_time_zone(ready: Bench) -> None:
    """The due time is exact to the millisecond in any time zone. A past time means now."""
    instant = datetime(2099, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    for zone in (UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
        ready.connection.publish(TOPIC, b"m", at=instant.astimezone(zone))
    assert [due_ms for _, due_ms in waiting(ready)] == [4_071_006_245_678] * 3
    ready.connection.publish(TOPIC, b"past", at=datetime(2001, 1, 1, tzinfo=UTC))
    assert [record.value for record in ready.records(TOPIC)] == [b"past"]


def test_the_store_judges_time_not_this_machine(ready: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay starts at the time of the store's clock, so a producer with a wrong clock schedules correctly."""
    store = ready.connection.store
    real = store.now_ms
    monkeypatch.setattr(store, "now_ms", lambda: real() + 3_600_000)
    ready.connection.publish(TOPIC, b"m", delay=1)
    ((_, due_ms),) = waiting(ready)
    assert due_ms - real() > 3_600_000


def test_an_id_is_stored_once(ready: Bench) -> None:
    """A repeated call, for example after a lost reply, changes nothing and returns the same id."""
    assert ready.connection.publish(TOPIC, b"first", delay=3_600, id="invoice-7") == "invoice-7"
    before = waiting(ready)
    assert ready.connection.publish(TOPIC, b"second", delay=60, id="invoice-7") == "invoice-7"
    assert waiting(ready) == before
    assert before[0][0] == "invoice-7"


def test_a_message_that_goes_at_once_is_sent_once_under_its_id(ready: Bench) -> None:
    """A repeated call sends nothing and returns the same id. Another topic or id means another message."""
    ready.connection.broker.create_topic("other")
    for topic, message_id in ((TOPIC, "7"), (TOPIC, "7"), (TOPIC, "8"), ("other", "7")):
        assert ready.connection.publish(topic, b"m", id=message_id) == message_id
    assert [record.header("retry-id") for record in ready.records(TOPIC)] == [b"7", b"8"]
    assert len(ready.records("other")) == 1


def test_a_copied_id_is_replaced(ready: Bench) -> None:
    """Two messages with a `retry-id` copied from another message get ids of their own."""
    for n in range(2):
        ready.connection.publish(TOPIC, b"%d" % n, headers=(("retry-id", b"old"), ("a", b"1")))
    ids = [record.header("retry-id") for record in ready.records(TOPIC)]
    assert len({*ids, b"old"}) == 3
    assert [len(record.headers) for record in ready.records(TOPIC)] == [2, 2]


def test_two_groups_count_a_published_message_apart(ready: Bench) -> None:
    """Two groups that fail see the same publisher's id. The store knows the message under another id for each group."""
    ready.connection.publish(TOPIC, b"m", id="7")
    (record,) = ready.records(TOPIC)
    failure = Failure(error_class="E")
    states = [read(failed_message(group, record, retry_state(group, record), failure).headers) for group in ("a", "b")]
    assert [state.id for state in states] == ["7", "7"]
    assert len({state.known_as for state in states}) == 2
    assert (
        retry_state("a", record, secrets=[b"s" * 16]).oddities == ()
    )  # its headers claim nothing that needs a signature


class Plain:
    """A broker that remembers no ids, like Kafka."""

    name = "plain"

    def __init__(self, broker: Any) -> None:
        self.publish = broker.publish
        self.topics = broker.topics


def test_a_broker_without_a_memory_of_ids_sends_each_call_with_the_id(memory: Bench) -> None:
    """Each call sends one more record with the same id. An error in doubt says that a repeat may be a second record."""
    memory.connection.broker.create_topic(TOPIC)
    plain: Any = Plain(memory.connection.broker)
    connection = Connection(memory.connection.store, plain)
    for _ in range(2):
        connection.publish(TOPIC, b"m", id="7")
    plain.publish = lambda _: [PublishFailure("no answer", in_doubt=True)]
    with pytest.raises(BrokerUnavailable, match="id='7', which may be a second record") as caught:
        connection.publish(TOPIC, b"m", id="7")
    assert caught.value.in_doubt
    assert [record.header("retry-id") for record in memory.records(TOPIC)] == [b"7", b"7"]


def test_an_id_that_is_no_header_is_refused(ready: Bench) -> None:
    """An id with a line break is refused, and nothing is sent."""
    with pytest.raises(Rejected, match="printable"):
        ready.connection.publish(TOPIC, b"m", id="a\nb")
    assert nothing_sent(ready)


def test_ids_that_were_not_given_are_all_different(ready: Bench) -> None:
    """Without `id`, equal messages get different ids."""
    ids = {ready.connection.publish(TOPIC, b"m", delay=3_600) for _ in range(50)}
    assert len(ids) == 50
    assert {found for found, _ in waiting(ready)} == ids


def test_a_waiting_message_is_cancelled_by_its_id(bench: Bench, handler: Handlers) -> None:
    """The cancelled message does not arrive, and another message does."""
    handle = handler()
    bench.serve()
    bench.consume(handle)
    cancelled = bench.connection.publish(TOPIC, b"cancelled", delay=0.2)
    bench.connection.publish(TOPIC, b"kept", delay=0.3)
    assert bench.connection.store.cancel([cancelled]) == [Outcome.DONE]
    bench.until(lambda: handle.values == [b"kept"])


def test_a_waiting_message_is_rescheduled_by_its_id(bench: Bench, handler: Handlers) -> None:
    """A message that is made due now arrives at once, because `reschedule` wakes the dispatcher."""
    handle = handler()
    bench.serve()
    bench.consume(handle)
    message_id = bench.connection.publish(TOPIC, b"m", delay=3_600)
    bench.connection.store.reschedule([message_id], bench.connection.store.now_ms())
    bench.until(lambda: handle.values == [b"m"])


def test_an_expired_message_is_a_dead_letter(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """A message that is read after its expiry becomes a dead letter. Other messages are handled."""
    handle = handler()
    bench.connection.broker.create_topic(TOPIC)
    bench.serve(policy())
    bench.connection.publish(TOPIC, b"late", expires=0.001)
    bench.connection.publish(TOPIC, b"in time", expires=timedelta(hours=1))
    bench.connection.publish(TOPIC, b"later", delay=0.05, expires=datetime(2099, 1, 1, tzinfo=UTC))
    bench.until(lambda: bench.connection.store.counts().total("due") == 0)
    consumer = bench.consume(handle)
    (letter,) = bench.dead()
    bench.until(lambda: consumer.stats.acknowledged == 2)
    assert letter.message is not None
    assert (letter.message.value, letter.reason) == (b"late", "verdict: expired: it came too late")
    assert sorted(handle.values) == [b"in time", b"later"]


@pytest.mark.parametrize("more", [{}, {"delay": 60}, {"at": datetime(2099, 1, 1, tzinfo=UTC)}])
def test_an_unknown_topic_is_refused(bench: Bench, more: dict[str, Any]) -> None:
    """For an unknown topic, `publish` raises an error at once, not when the message is due."""
    bench.connection.broker.create_topic("nowhere.else")
    with pytest.raises(
        UnknownTopic, match="there is no topic 'nowhere': nothing was sent; did you mean 'now"
    ) as caught:
        bench.connection.publish("nowhere", b"m", **more)
    assert "connection.broker.create_topic('nowhere')" in str(caught.value)
    assert "connect(..., create_topics=True)" in str(caught.value)
    assert bench.connection.store.counts().ever == {}


@pytest.mark.real
def test_a_name_that_no_topic_can_have_is_refused(server: Bench) -> None:
    """For a name that no topic can have, `publish` raises an error at once, even with `create_topics`."""
    names = ("{orders}:wheel-sched:sent:2:yy:orders", "{wheel:0}:mark", "{wheel:0}:due", "topics", "")
    with connect(server.url or "", create_topics=True) as connection:
        for topic, more in itertools.product(names, ({}, {"delay": 60})):
            with pytest.raises(Rejected, match=r"expected topic (not )?to b.*; nothing was sent"):
                connection.publish(topic, b"m", **more)  # type: ignore[arg-type]
        assert connection.store.counts().ever == {}


def test_a_name_that_memory_cannot_have_is_refused_also_later() -> None:
    """The memory broker refuses an empty topic name at once, for a delayed message too."""
    with connect("memory:", create_topics=True) as connection, pytest.raises(Rejected, match="non-empty"):
        connection.publish("", b"m", delay=60)


def test_a_topic_that_was_deleted_meanwhile_is_refused(server: Bench, redis_client: Any) -> None:
    """`publish` to a topic raises `UnknownTopic` after the topic was deleted, although an earlier call succeeded."""
    server.connection.broker.create_topic(TOPIC)
    server.connection.publish(TOPIC, b"m")
    redis_client.delete(TOPIC)
    with pytest.raises(UnknownTopic):
        server.connection.publish(TOPIC, b"m")


@pytest.mark.real
def test_topics_are_created_on_request_alone(quick_poll: None, redis_url: str) -> None:
    """With `create_topics`, `publish` and `replay` create absent topics, in memory and on a server."""
    for url in ("memory:", redis_url):
        with connect(url, create_topics=True) as connection:
            connection.publish("new", b"now")
            connection.publish("newer", b"later", delay=3_600)
            assert (connection.broker.topics()["new"], connection.broker.topics()["newer"]) == (1, 0)
            DeadLetters(connection).replay(target="tried", dry_run=True)
            DeadLetters(connection).replay(target="repair")
            assert set(connection.broker.topics()) == {"new", "newer", "repair"}
    with connect(redis_url) as connection:
        connection.publish("newer", b"now")  # other producers know the created topic


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"delay": -1}, "expected delay to be seconds from 0 up or a timedelta, got: -1"),
        ({"delay": timedelta(seconds=-1)}, "expected delay"),
        ({"delay": float("nan")}, "expected delay"),
        ({"delay": float("inf")}, "expected delay"),
        ({"delay": "60"}, "expected delay"),
        ({"delay": True}, "expected delay"),
        ({"delay": 3.2e11}, "year 9999"),
        ({"delay": timedelta(days=365 * 9_974)}, "year 9999"),
        ({"delay": timedelta.max}, "expected delay"),
        ({"at": datetime(2099, 1, 1)}, "expected at to be a datetime with a time zone"),
        ({"at": datetime(1969, 1, 1, tzinfo=UTC)}, "after 1970"),
        ({"at": "2099-01-01"}, "expected at to be a datetime with a time zone"),
        ({"delay": 1, "at": datetime(2099, 1, 1, tzinfo=UTC)}, "expected delay or at, got both"),
        ({"delay": 0, "at": datetime(2099, 1, 1, tzinfo=UTC)}, "expected delay or at, got both"),
        ({"expires": -1}, "expected expires"),
        ({"expires": datetime(2099, 1, 1)}, "expected expires to be a datetime with a time zone"),
        ({"delay": 60, "expires": 60}, "would expire before it is due"),
        ({"expires": datetime(2001, 1, 1, tzinfo=UTC)}, "would expire before it is due"),
        ({"id": "", "delay": 1}, "expected an id to be a non-empty text"),
        ({"id": "x" * 1_000_000, "delay": 1}, "at most 512 bytes"),
        ({"id": "\ud800", "delay": 1}, "can be written in UTF-8"),
        ({"id": 7, "delay": 1}, "expected an id to be"),
        ({"id": ""}, "expected an id to be a non-empty text"),
        ({"value": "text"}, "expected value to be bytes, got: str"),
        ({"key": "text"}, "expected key to be bytes or None, got: str"),
        ({"headers": (("a", "text"),)}, "headers to be pairs of text and bytes"),
        ({"headers": {"a": b"1"}}, "headers to be pairs of text and bytes"),
        ({"headers": (("\ud800", b"1"),), "delay": 1}, "names of headers to be text"),
        ({"headers": (("a", b"1"),) * 1_500, "delay": 1}, "at most 1499 fields"),
        ({"value": b"x" * (16 * 1024 * 1024 + 1), "delay": 1}, "the limit is 16777216"),
    ],
)
def test_a_wrong_argument_is_refused(ready: Bench, arguments: dict[str, Any], words: str) -> None:
    """The error for a wrong argument names the expected value and is short. Nothing is sent or stored."""
    with pytest.raises(Rejected, match=words) as raised:
        ready.connection.publish(TOPIC, **{"value": b"m"} | arguments)
    assert len(str(raised.value)) < 400
    assert nothing_sent(ready)


def test_all_wrong_parts_of_a_message_are_told_at_once(ready: Bench) -> None:
    """One error lists all wrong arguments of `publish`."""
    with pytest.raises(Rejected, match=r"value to be bytes.*key to be bytes.*headers to be pairs"):
        ready.connection.publish(TOPIC, "m", key=1, headers=[1])  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (PublishFailure("throttled"), BrokerUnavailable),
        (PublishFailure("no answer", in_doubt=True), BrokerUnavailable),
        (PublishFailure("too large", transient=False), BrokerError),
    ],
)
def test_a_refused_message_says_whether_to_try_again(
    memory: Bench, monkeypatch: pytest.MonkeyPatch, failure: PublishFailure, error: type[BrokerError]
) -> None:
    """`transient` says whether a repeat helps. The text says whether the message may have been sent."""
    memory.connection.broker.create_topic(TOPIC)
    monkeypatch.setattr(memory.connection.broker, "publish_once", lambda *_: failure)
    with pytest.raises(error, match=failure.reason) as raised:
        memory.connection.publish(TOPIC, b"m")
    assert raised.value.transient == failure.transient
    assert ("may be sent" in str(raised.value)) == failure.in_doubt


def test_names_of_headers_and_topics_may_be_in_any_script(bench: Bench, handler: Handlers) -> None:
    """A delayed message keeps a header name and a topic name that are not ASCII."""
    handle = handler()
    bench.serve()
    bench.consume(handle, "bestellungen-ü-注文")
    bench.connection.publish("bestellungen-ü-注文", b"m", headers=(("spür", b"\xff"),), delay=0.02)
    bench.until(lambda: len(handle.calls) == 1)
    assert without_ours(handle.calls[0].message.headers) == (("spür", b"\xff"),)


@pytest.mark.parametrize("hand_over", ["auto", "settle"])
@pytest.mark.real
def test_a_delayed_message_carries_its_id_however_it_is_handed_over(
    server: Bench, handler: Handlers, hand_over: str
) -> None:
    """The message is moved by one script, or by claim, publish and settle.

    In both cases it has the id that `publish` returned.
    """
    handle = handler()
    server.serve(hand_over=hand_over)
    server.consume(handle)
    given = server.connection.publish(TOPIC, b"m", delay=0.01, id="daily")
    made = server.connection.publish(TOPIC, b"m", delay=0.01)
    server.until(lambda: len(handle.calls) == 2)
    assert {call.state.id for call in handle.calls} == {given, made} == {"daily", made}


def test_a_delayed_message_that_fails_keeps_its_id(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Two groups read one message. All deliveries have one id, and each group counts its own attempts."""
    handles = {group: handler(ValueError("x"), ValueError("x"), None) for group in ("billing", "audit")}
    for group, handle in handles.items():
        bench.serve(policy(), group=group)
        bench.consume(handle, group=group)
    message_id = bench.connection.publish(TOPIC, b"m", delay=0.01)
    for handle in handles.values():
        bench.until(lambda h=handle: len(h.calls) == 3)  # type: ignore[misc]  # the loop's own
        assert [(call.state.id, call.attempt, call.message.topic) for call in handle.calls] == [
            (message_id, attempt, TOPIC) for attempt in (1, 2, 3)
        ]


def test_headers_copied_from_another_message_are_not_sent(ready: Bench) -> None:
    """`publish` leaves out retry headers that were copied from another message. It keeps all other headers."""
    copied = (("retry-id", b"m"), ("retry-attempt", b"7"), ("trace", b"1"))
    ready.connection.publish(TOPIC, b"now", headers=copied)
    ready.connection.publish(TOPIC, b"later", headers=copied, delay=60, id="later")
    (now,) = ready.records(TOPIC)
    later = decode_body(ready.connection.store.list_items("due").found[0].body)
    assert [name for name, _ in now.headers] == ["trace", "retry-id"]
    assert now.header("retry-id") != b"m"
    assert (later.header("retry-id"), later.header("retry-attempt")) == (b"later", None)
    assert later.header("trace") == b"1"


@pytest.mark.parametrize("message_id", ["a\nb", "\x1b[2J", "i" * 251])
def test_an_id_that_no_header_can_carry_is_refused(ready: Bench, message_id: str) -> None:
    """An id that is too long or has control characters is refused, and nothing is stored."""
    with pytest.raises(Rejected, match="expected an id of at most 250"):
        ready.connection.publish(TOPIC, b"m", delay=60, id=message_id)
    assert ready.connection.store.counts().total("due") == 0


def test_of_messages_under_one_key_only_the_first_or_last_is_sent(ready: Bench) -> None:
    """With `collapse`, `publish` returns the id of the message that waits under the key. With `debounce`, the new
    message replaces the waiting one. It is due at most `max_wait` after the first."""
    publish = ready.connection.publish
    first = publish(TOPIC, b"1", delay=60, collapse="order-7")
    assert publish(TOPIC, b"2", delay=60, collapse="order-7") == first
    other = publish(TOPIC, b"3", delay=60, collapse="order-8", id="mine")
    assert {name for name, _ in waiting(ready)} == {first, other}
    last = publish(TOPIC, b"4", delay=3600, debounce="order-7", max_wait=90)
    now_ms = ready.connection.store.now_ms()
    dues = dict(waiting(ready))
    assert set(dues) == {last, "mine"}
    assert dues[last] <= now_ms + 90_000
    assert publish(TOPIC, b"3", delay=60, collapse="order-8", id="mine") == "mine"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"collapse": "a", "debounce": "b", "delay": 1}, "expected collapse or debounce, got both"),
        ({"collapse": "a"}, "expected delay or at with collapse and debounce"),
        ({"debounce": "", "delay": 1}, "expected the key of collapse or debounce to be text, got: ''"),
        ({"debounce": "a", "delay": 1, "max_wait": -1}, "expected max_wait to be seconds from 0 up"),
    ],
)
def test_a_wrong_key_is_refused(ready: Bench, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        ready.connection.publish(TOPIC, b"m", **arguments)
    assert nothing_sent(ready)
