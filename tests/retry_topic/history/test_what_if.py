"""`what_if` compares recorded attempts with what another policy would do. `latest_attempts` reads the attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from retry_topic.history import Attempt, latest_attempts, what_if
from retry_topic.history.what_if import MAX_FURTHER, MAX_FURTHER_IN_ALL
from retry_topic.policy import Fixed, PolicySet, RetryPolicy, Rule
from wheel_sched.store import DelayStore, History, open_store

SECOND_MS = 1_000
TODAY = PolicySet(RetryPolicy(delay=Fixed(SECOND_MS), max_attempts=4))


def message(name: str, outcomes: str, topic: str = "orders", error: str = "app.Away") -> list[Attempt]:
    """The rows of a message, one second apart. Each letter is an attempt: f(ailed), d(ead) or o(k)."""
    words = {"f": "failed", "d": "dead", "o": "ok"}
    return [
        Attempt(name, topic, number, None, number * SECOND_MS, words[letter], None if letter == "o" else error)
        for number, letter in enumerate(outcomes, 1)
    ]


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as opened:
        yield opened


def policy(**settings: object) -> PolicySet:
    return PolicySet(RetryPolicy(**{"delay": Fixed(SECOND_MS), "max_attempts": 4, **settings}))  # type: ignore[arg-type]


def test_the_same_policy_does_what_was_recorded() -> None:
    """With the policy that made the history, `what_if` finds as many retries and given-up messages as were recorded."""
    rows = [*message("a", "ffo"), *message("b", "fffd"), *message("c", "ff")]
    found = what_if(rows, TODAY, TODAY).total
    assert (found.messages, found.retries, found.succeeded, found.given_up, found.waiting) == (3, 7, 1, 1, 1)
    assert found.present == found.edited
    assert (found.present.retries, found.present.given_up, found.present.lost) == (7, 1, 0)
    assert found.present.further == found.present.undecided == found.earlier == found.later == 0
    assert found.wait_ms == found.present.wait_ms == 3_000
    assert found.shift_ms == 0


def test_fewer_attempts_lose_messages_that_succeeded_later() -> None:
    """With two attempts, both messages are given up after the second. In the history, one of them was given up later,
    and the other one succeeded at its third attempt."""
    found = what_if([*message("a", "ffo"), *message("b", "fffd")], TODAY, policy(max_attempts=2)).total
    assert (found.edited.retries, found.edited.given_up, found.edited.lost) == (2, 2, 1)
    assert (found.earlier, found.later, found.shift_ms) == (1, 0, -2_000)


def test_more_attempts_give_up_later_and_count_as_further_retries() -> None:
    """With six attempts, a message that was given up after its fourth attempt is retried twice more and given up
    later."""
    found = what_if(message("b", "fffd"), TODAY, policy(max_attempts=6)).total
    assert (found.edited.retries, found.edited.further, found.edited.given_up) == (5, 2, 1)
    assert (found.earlier, found.later, found.shift_ms) == (0, 1, 2_000)
    assert found.edited.wait_ms == 5_000


def test_a_longer_delay_gives_up_later_with_the_same_retries() -> None:
    """A longer delay changes when a message is given up, but not how often it is retried. A maximum age changes
    both."""
    found = what_if(message("b", "fffd"), TODAY, policy(delay=Fixed(10 * SECOND_MS))).total
    assert (found.edited.retries, found.edited.wait_ms, found.shift_ms) == (3, 30_000, 27_000)
    capped = what_if(message("b", "fffd"), TODAY, policy(delay=Fixed(10 * SECOND_MS), max_age_ms=10_000)).total
    assert (capped.edited.retries, capped.edited.wait_ms) == (1, 10_000)


def test_rules_see_the_recorded_class() -> None:
    """A rule makes errors of a recorded class fatal. So the message is given up at its first failure."""
    edited = policy(rules=(Rule(errors=("Away",), dead=True),))
    found = what_if([*message("a", "ffo"), *message("b", "fo", error="app.Other")], TODAY, edited).total
    assert (found.edited.retries, found.edited.given_up, found.edited.lost) == (1, 1, 1)


def test_each_topic_meets_its_own_policy_and_the_largest_comes_first() -> None:
    """Each topic is compared under its own policy. The topic with the most messages comes first."""
    edited = PolicySet(TODAY.default, {"mail": RetryPolicy(max_attempts=1)})
    rows = [*message("a", "fffd"), *message("b", "fo", "mail"), *message("c", "fo", "mail")]
    found = what_if(rows, TODAY, edited)
    assert list(found.topics) == ["mail", "orders"]
    assert (found.topics["mail"].edited.lost, found.topics["orders"].edited.lost) == (2, 0)
    assert found.total.messages == 3
    assert found.total.edited.lost == 2


def test_messages_without_their_first_attempts_are_left_out() -> None:
    """A message is left out and only counted if its first row was trimmed, if a row between others is missing, or if it
    failed after a success."""
    rows = [*message("a", "fffd")[1:], *message("b", "fffd")[:1], *message("b", "fffd")[2:], *message("c", "fof")]
    found = what_if([*rows, *message("d", "fo")], TODAY, TODAY)
    assert (found.left_out, found.total.messages) == (3, 1)
    assert (found.first_ms, found.last_ms) == (1_000, 4_000)


def test_an_empty_history_compares_nothing() -> None:
    """Without rows, all numbers are zero and all times are None."""
    found = what_if([], TODAY, TODAY)
    assert (found.attempts, found.total.messages, found.first_ms, found.total.shift_ms) == (0, 0, None, None)
    assert found.as_dict()["cannot_know"]


def test_a_policy_without_an_end_is_left_undecided_within_the_bounds() -> None:
    """A policy without a last attempt is followed for a bounded number of failures. Then the message counts as
    undecided."""
    endless = policy(max_attempts=None, delay=Fixed(1))
    one = what_if(message("a", "fd"), TODAY, endless).total
    assert (one.edited.undecided, one.edited.given_up, one.edited.retries) == (1, 0, 2 + MAX_FURTHER)
    rows = [row for number in range(2_000) for row in message(f"m{number}", "fd")]
    began = time.monotonic()
    many = what_if(rows, TODAY, endless).total
    assert time.monotonic() - began < 20
    assert many.edited.undecided == 2_000
    assert many.edited.further <= MAX_FURTHER_IN_ALL + 2_000


def test_the_latest_attempts_are_read_and_the_others_are_not(store: DelayStore) -> None:
    """Only the latest rows are read, each once. Entries that are no rows are counted."""
    rows = [row for number in range(50) for row in message(f"m{number}", "fo")]
    History(store).append([(row.id, row.encode()) for row in rows], keep=1_000)
    History(store).append([("m49", message("m49", "fo")[1].encode()), ("m49", b"no row")], keep=1_000)
    found = latest_attempts(store, 12)
    assert found.unreadable == 1
    assert sorted(found.rows) == sorted(rows[-10:])
    assert len(latest_attempts(store).rows) == 100


def test_reading_is_bounded_over_all_shards() -> None:
    """The limit holds for the rows of all shards together, not for each shard."""
    with open_store("memory:", shards=4) as store:
        rows = [row for number in range(500) for row in message(f"m{number}", "fo")]
        History(store).append([(row.id, row.encode()) for row in rows], keep=100_000)
        assert 90 <= len(latest_attempts(store, 100).rows) <= 104
