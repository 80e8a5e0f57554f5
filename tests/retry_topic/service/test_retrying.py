"""The whole loop: a handler fails, the message waits in the store, comes back on time, and may become a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import DeadLetter, GroupTopics, Retry, RetryPolicy
from retry_topic.message import Message
from retry_topic.message.headers import read
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Exponential, Fixed, PolicySet, Rule

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]


class TooMany(Exception):
    """An HTTP error 429, as client libraries raise it."""

    status_code = 429

    def __init__(self, retry_after: str) -> None:
        super().__init__("too many requests")
        self.headers = {"Retry-After": retry_after}


def test_a_failing_message_comes_back_until_it_succeeds(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """A message fails twice and then succeeds. The handler sees attempts 1, 2 and 3, and the store is
    empty afterwards."""
    handle = handler(ValueError("first"), ValueError("second"), None)
    bench.serve(policy(max_attempts=5))
    consumer = bench.consume(handle)
    bench.publish(b"order 42")
    bench.until(lambda: consumer.stats.acknowledged == 1)
    assert handle.attempts == [1, 2, 3]
    assert (consumer.stats.retried, consumer.stats.dead) == (2, 0)
    bench.until(lambda: bench.waiting() == 0)  # settled right after it was handed over
    assert bench.letters() == []


def test_a_retry_is_never_early_and_waits_as_long_as_the_policy_says(bench: Bench, handler: Handlers) -> None:
    """Each redelivery reaches the handler at its due time or later. The due time is the failure time plus the delay."""
    handle = handler(ValueError("x"), ValueError("x"), ValueError("x"), None)
    delays_ms = [30, 60, 120]
    bench.serve(RetryPolicy(delay=Exponential(base_ms=30, jitter="none")))
    bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: len(handle.calls) == 4)
    for call, delay_ms in zip(handle.calls[1:], delays_ms, strict=True):
        due_ms, failed_ms = call.state.due_ms, call.state.last_failed_ms
        assert due_ms is not None
        assert failed_ms is not None
        assert call.at_ms >= due_ms >= failed_ms + delay_ms
        assert call.state.delay_ms == delay_ms
        assert call.at_ms - due_ms < 20_000  # a shared machine may be slow


def test_the_cap_by_count_ends_the_attempts(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """With max_attempts=3 there are three deliveries. The dead letter names the reason and the error."""
    handle = handler(ValueError("always"))
    bench.serve(policy(max_attempts=3))
    bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert handle.attempts == [1, 2, 3]
    assert letter.reason == "max-attempts: builtins.ValueError: always"
    assert letter.state.attempt == 3
    assert letter.topic == "orders"
    bench.quiet()
    assert len(handle.calls) == 3


def test_the_cap_by_age_ends_the_attempts(bench: Bench, handler: Handlers) -> None:
    """A retry that would be due after the maximum age is not made, whatever the attempt count is."""
    handle = handler(ValueError("always"))
    bench.serve(RetryPolicy(delay=Fixed(base_ms=300), max_attempts=None, max_age_ms=1_000))
    bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert letter.reason.startswith("max-age: ")
    assert 2 <= len(handle.calls) <= 4  # 300, 600 and 900 ms after the first failure at most
    died_ms, first_ms = letter.died_ms, letter.state.first_failed_ms
    assert first_ms is not None
    assert died_ms - first_ms < 20_000  # decided at the failure, not when the next retry would have been due


def test_a_fatal_error_is_dead_at_once(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """A rule with `dead=True` makes a dead letter at once, also for a subclass of its error."""
    handle = handler(KeyError("id"))
    bench.serve(policy(rules=(Rule(errors=("LookupError",), dead=True),)))
    bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert letter.reason.startswith("fatal: builtins.KeyError")
    assert len(handle.calls) == 1


def test_the_handler_asks_for_its_own_delay(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """`Retry(after=...)` replaces the policy's delay. The redelivered message has the reason that the handler gave."""
    handle = handler(Retry(after=0.15, reason="warehouse is counting"), None)
    bench.serve(policy(base_ms=10_000))
    bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: len(handle.calls) == 2)
    state = handle.calls[1].state
    assert (state.delay_ms, state.error_message, state.error_class) == (150, "warehouse is counting", None)
    assert handle.calls[1].at_ms - handle.calls[0].at_ms >= 150


def test_retry_counts_as_an_attempt(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """A handler that always returns `Retry` reaches max_attempts too."""
    handle = handler(Retry(after=0))
    bench.serve(policy(max_attempts=3))
    bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert (letter.state.attempt, handle.attempts) == (3, [1, 2, 3])


def test_the_remote_side_asks_for_a_delay(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The message waits for the `Retry-After` of an HTTP error. The redelivered message has the status."""
    handle = handler(TooMany("0.2"), None)
    bench.serve(policy(base_ms=1))
    bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: len(handle.calls) == 2)
    state = handle.calls[1].state
    assert (state.delay_ms, state.error_status) == (200, 429)
    assert handle.calls[1].at_ms - handle.calls[0].at_ms >= 200


def test_the_handler_gives_a_message_up(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """`DeadLetter(reason)` makes a dead letter at once, with the handler's reason."""
    bench.serve(policy())
    consumer = bench.consume(handler(DeadLetter("no such customer")))
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert letter.reason == "verdict: no error: no such customer"
    bench.until(lambda: consumer.stats.dead == 1)


def test_policies_belong_to_topics(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The policy of the original topic decides."""
    handle = handler(ValueError("x"))
    bench.serve(PolicySet(policy(max_attempts=1), {"payments": policy(max_attempts=4)}))
    bench.consume(handle, ["orders", "payments"])
    bench.publish(b"o")
    bench.publish(b"p", topic="payments")
    attempts = {letter.topic: letter.state.attempt for letter in bench.dead(2)}
    assert attempts == {"orders": 1, "payments": 4}


def test_nothing_of_the_message_changes_on_the_way(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Payload, key and all headers of the application are the same at each delivery and in the dead letter."""
    value, key = bytes(range(256)) * 4, b"\x00\xff\n key"
    headers = (("trace", b"1"), ("value", b"not the payload"), ("trace", b"\x00\x01"), ("h:key", b""), ("ünï", b"x"))
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=3))
    bench.consume(handle)
    bench.publish(value, key=key, headers=headers)
    (letter,) = bench.dead()
    assert letter.message is not None
    for message in [call.message for call in handle.calls] + [letter.message]:
        own = [pair for pair in message.headers if not pair[0].startswith("retry-")]
        assert (message.value, message.key, tuple(own)) == (value, key, headers)


def test_the_origin_is_kept_and_each_header_stands_once(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """On every retry the headers name the place of the first delivery. No header occurs twice."""
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=4))
    bench.consume(handle)
    bench.publish(b"before", b"m")
    bench.until(lambda: len(handle.calls) == 8)
    first, *retries = [call.message for call in handle.calls if call.message.value == b"m"]
    assert first.source is not None
    for message in retries:
        state = read(message.headers)
        assert state.original_topic == "orders"
        assert (state.original_partition, state.original_offset) == (first.source.partition, first.source.offset)
        assert state.original_timestamp_ms == first.source.timestamp_ms
        names = [name for name, _ in message.headers]
        assert len(names) == len(set(names))


def test_the_handler_sees_the_topic_it_subscribed_to(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """On a redelivery, `message.topic` is the original topic, and `source` is the place in the redelivery topic."""
    handle = handler(ValueError("x"), None)
    bench.serve(policy())
    bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: len(handle.calls) == 2)
    sources = [call.message.source.topic for call in handle.calls if call.message.source]
    assert [call.message.topic for call in handle.calls] == ["orders", "orders"]
    assert sources == ["orders", redelivery_topic_of("billing")]


def test_other_groups_are_not_disturbed(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """With redelivery to the group, another group of the topic gets each message once."""
    failing, other = handler(ValueError("x"), ValueError("x"), None), handler()
    bench.serve(policy())
    bench.consume(failing)
    bench.consume(other, group="audit")
    bench.publish(b"m")
    bench.until(lambda: len(failing.calls) == 3)
    bench.quiet()
    assert other.values == [b"m"]


def test_redelivery_to_the_origin_is_seen_by_every_group(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """With redelivery="origin" the message comes back on its original topic."""
    failing, other = handler(ValueError("x"), None), handler()
    bench.serve(policy(), redelivery="origin")
    bench.consume(failing)
    bench.consume(other, group="audit")
    bench.publish(b"m")
    bench.until(lambda: len(failing.calls) == 2 and len(other.calls) == 2)
    assert bench.records("orders")[1].value == b"m"
    assert bench.records(redelivery_topic_of("billing")) == []
    assert failing.attempts == [1, 2]


def test_two_groups_that_fail_on_a_redelivered_message_each_get_their_attempts(
    bench: Bench, handler: Handlers, policy: Policy
) -> None:
    """Two groups fail on one message. Each counts its own attempts, under its own id."""
    one, other = handler(ValueError("one")), handler(ValueError("other"))
    bench.serve(policy(max_attempts=2), redelivery="origin")
    bench.serve(policy(max_attempts=2), group="audit", redelivery="origin")
    bench.consume(one)
    bench.consume(other, group="audit")
    bench.publish(b"m")
    # in each group two messages die: the published one, and the redelivery that the other group caused
    bench.until(lambda: bench.waiting() == 0 and bench.connection.store.counts().total("dead") == 4, bench.letters)
    groups = sorted((letter.state.consumer_group, letter.state.attempt) for letter in bench.letters())
    assert groups == [("audit", 2)] * 2 + [("billing", 2)] * 2


def test_the_dead_topic_hears_of_every_dead_letter(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The dead topic gets each dead letter with its retry headers, as the store has it."""
    bench.serve(policy(max_attempts=1))
    bench.consume(handler(ValueError("x")))
    bench.publish(b"m", key=b"k")
    bench.dead()
    bench.until(lambda: len(bench.records(dead_topic_of("billing"))) == 1)
    (record,) = bench.records(dead_topic_of("billing"))
    state = read(record.headers)
    assert (record.value, record.key, state.error_class, state.attempt) == (b"m", b"k", "builtins.ValueError", 1)


def test_many_messages_all_come_through(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Of 300 messages a third succeeds at once, a third at the second attempt, and a third is dead. None is lost or
    doubled."""

    def judge(message: Message) -> None:
        number = int(message.value)
        if number % 3 == 2 or (number % 3 == 1 and read(message.headers).attempt == 0):
            raise ValueError(f"failed {number}")

    handle = handler(judge)
    bench.serve(policy(max_attempts=2))
    consumer = bench.consume(handle, concurrency=16)
    bench.publish(*(str(n).encode() for n in range(300)))
    bench.until(lambda: consumer.stats.acknowledged + consumer.stats.dead >= 200 and bench.waiting() == 0)
    bench.dead(100)
    bench.until(lambda: consumer.stats.acknowledged == 200)
    assert sorted(map(int, handle.values)) == sorted([*range(300), *(n for n in range(300) if n % 3 != 0)])
    assert {int(letter.message.value) % 3 for letter in bench.letters() if letter.message} == {2}
    for topic in ("orders", retry_topic_of("billing")):
        bench.until(lambda topic=topic: bench.unsettled(topic) == [])  # type: ignore[misc]  # the last one may still be settled


def test_what_the_intake_did_is_told(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """For each failure the callback `seen` gets a `Taken` with id, attempt, due time or reason, and an explanation."""
    bench.serve(policy(max_attempts=2))
    bench.consume(handler(ValueError("x")))
    bench.publish(b"m")
    bench.dead()
    bench.until(lambda: len(bench.taken) == 2)
    first, last = bench.taken
    assert (first.attempt, first.dead, first.topic, last.attempt, last.dead) == (1, None, "orders", 2, "max-attempts")
    assert first.due_ms is not None
    assert last.due_ms is None
    assert first.id.removesuffix(".1") == last.id.removesuffix(".2")
    assert "default@1" in first.why


@pytest.mark.parametrize("paused", ["orders"])
def test_a_paused_topic_waits_and_the_others_go_on(
    bench: Bench, handler: Handlers, policy: Policy, paused: str
) -> None:
    """Retries of a paused topic are held until it is resumed. Another topic's retries continue."""
    handle = handler(lambda message: Retry(after=0.02) if read(message.headers).attempt == 0 else None)
    bench.serve(policy())
    bench.consume(handle, ["orders", "payments"])
    bench.connection.store.pause(paused)
    bench.publish(b"o")
    bench.publish(b"p", topic="payments")
    bench.until(lambda: handle.values.count(b"p") == 2)
    bench.until(lambda: bench.connection.store.counts().total("held") == 1)
    assert handle.values.count(b"o") == 1
    assert bench.connection.store.resume(paused) == 1
    bench.until(lambda: handle.values.count(b"o") == 2)


def test_topics_that_are_named_are_used_in_place(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """With `group_topics`, all messages use the given topics, and the default topics are not created."""
    topics = GroupTopics(retry="orders-retry", redelivery="orders-again", dead="orders-dlt")
    handle = handler(ValueError("always"))
    bench.serve(policy(max_attempts=2), group_topics=topics)
    bench.consume(handle, group_topics=topics)
    bench.publish(b"m")
    bench.dead()
    assert handle.attempts == [1, 2]
    assert [call.message.topic for call in handle.calls] == ["orders", "orders"]
    bench.until(lambda: len(bench.records("orders-dlt")) == 1)
    assert not {"billing.retry", "billing.redelivery", "billing.dead"} & {*bench.connection.broker.topics()}
