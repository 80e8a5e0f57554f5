"""Replays of a dead topic: they get new ids and are counted, so that a message that always fails is not replayed for
ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import DeadLetterFilter, DeadLetters, RetryPolicy
from retry_topic.dead_letters.dead_topic import LetterToMessage, TopicReplay
from retry_topic.message.headers import read
from retry_topic.message.topic_names import GroupTopics
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import AttemptCounts

if TYPE_CHECKING:
    from conftest import Bench

OWN = GroupTopics().of("billing")


class DeadTopic:
    """The dead topic of a bench, read as the command `kafka replay` reads it."""

    def __init__(self, bench: Any, idle_ms: int = 30_000) -> None:
        self.bench = bench
        self.consumer = bench.connection.broker.consumer([OWN["dead"]], "billing.replay", idle_ms=idle_ms)
        self.convert = LetterToMessage("billing", OWN, OWN["redelivery"], "topic-id")

    def replay(self, letters: int = 1, **settings: Any) -> TopicReplay:
        """Wait for this number of dead letters and replay them."""
        done = TopicReplay(self.convert, self.bench.connection.store, **settings)
        found: list[Any] = []
        while len(found) < letters:  # the letters are there, or come within a poll's timeout
            found += self.consumer.poll(500, 10)
        done.send(self.consumer, found)
        return done


@pytest.fixture
def poisoned(bench: Bench, handler: Any, policy: Callable[..., RetryPolicy]) -> Any:
    """A message that fails at each delivery and has become a dead letter once. Return its handler."""
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=1))
    bench.consume(handle)
    bench.publish(b"poison")
    bench.dead()
    return handle


def test_a_message_that_dies_each_time_is_held_back(bench: Bench, poisoned: Any) -> None:
    """After three replays the message is not replayed any more. Each replay has its own id."""
    topic = DeadTopic(bench)
    for replays in (1, 2, 3):
        done = topic.replay()
        assert (done.replayed, done.guarded) == (1, 0)
        bench.dead(replays + 1)
    assert [call.state.replays for call in poisoned.calls] == [0, 1, 2, 3]
    assert len({one.state.id for one in bench.letters()}) == 4
    done = topic.replay()
    assert (done.replayed, done.guarded) == (0, 1)
    assert topic.consumer.poll(1, 0) == []  # the letter that is held back is settled too


def test_both_ways_to_replay_count_for_one_another(bench: Bench, poisoned: Any) -> None:
    """Replays from the store and replays from the dead topic count towards one limit."""
    topic = DeadTopic(bench)
    assert topic.replay(max_replays=2).replayed == 1
    bench.dead(2)
    (mine,) = [one for one in bench.letters() if one.state.replays]
    letters = DeadLetters(bench.connection)
    assert letters.replay(DeadLetterFilter(ids=frozenset({mine.id})), max_replays=1).guarded == 1
    assert letters.replay(DeadLetterFilter(ids=frozenset({mine.id})), max_replays=2).replayed == 1
    bench.until(lambda: len(poisoned.calls) == 3 and len(bench.letters()) == 2)
    done = topic.replay(letters=2, max_replays=2)
    assert (done.replayed, done.guarded) == (0, 2)  # both letters are of one message


def test_headers_decide_nothing(bench: Bench) -> None:
    """The store counts replays. A dead letter whose header claims 99 replays is replayed for the first time."""
    bench.connection.broker.create_topic(OWN["redelivery"])
    bench.publish(b"claims many", topic=OWN["dead"], headers=(("retry-id", b"a"), ("retry-replays", b"99")))
    bench.publish(b"claims nothing", topic=OWN["dead"])
    assert DeadTopic(bench).replay(letters=2).replayed == 2
    assert [read(one.headers).replays for one in bench.records(OWN["redelivery"])] == [1, 1]


def test_without_the_counts_nothing_is_sent(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store does not answer, no letter is sent, and the letters stay unsettled."""
    memory.connection.broker.create_topic(OWN["redelivery"])
    memory.publish(b"letter", topic=OWN["dead"])
    topic = DeadTopic(memory)

    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(AttemptCounts, "raise_to", away)
        with pytest.raises(StoreUnavailable):
            topic.replay()
    topic.consumer.close()
    assert memory.records(OWN["redelivery"]) == []
    assert DeadTopic(memory, idle_ms=1).replay().replayed == 1  # after `idle_ms`, not after the first consumer's 30 s
