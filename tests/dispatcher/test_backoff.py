"""How a publisher's answer becomes a settlement, without any thread."""

from __future__ import annotations

import pytest

from wheel_sched.dispatcher import DispatcherConfig, DispatcherStats, Failed
from wheel_sched.dispatcher.in_flight import Backoff
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settlement

NOW_MS = 1_000_000


@pytest.fixture
def stats() -> DispatcherStats:
    return DispatcherStats()


@pytest.fixture
def backoff(stats: DispatcherStats) -> Backoff:
    return Backoff(DispatcherConfig(backoff_ms=200, backoff_max_ms=30_000), stats)


def claimed(item_id: str) -> Claimed:
    return Claimed(item_id, NOW_MS, 1, "", b"")


@pytest.mark.parametrize("answer", [Done("a"), Next("a", 5), Held("a", "why"), Dead("a", "why")])
def test_a_settlement_is_passed_on(backoff: Backoff, stats: DispatcherStats, answer: Settlement) -> None:
    """If a publisher answers with a settlement, the item is settled with it."""
    assert backoff.settlement(claimed("a"), answer, NOW_MS) is answer
    assert stats.failed == 0


def test_each_failure_doubles_the_wait_up_to_its_bound(backoff: Backoff, stats: DispatcherStats) -> None:
    """The wait doubles up to a bound, and two thousand failures in a row cause no overflow."""
    settlements = [backoff.settlement(claimed("a"), Failed("no"), NOW_MS) for _ in range(2_000)]
    delays_ms = [s.due_ms - NOW_MS for s in settlements if isinstance(s, Next) and s.due_ms is not None]
    assert delays_ms[:9] == [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000]
    assert (len(delays_ms), set(delays_ms[9:])) == (2_000, {30_000})
    assert (stats.failed, stats.in_doubt) == (2_000, 0)


def test_success_resets_the_count(backoff: Backoff) -> None:
    """An item that fails again after a success waits for the first delay, not for a doubled one."""
    for _ in range(3):
        backoff.settlement(claimed("a"), Failed("no"), NOW_MS)
    backoff.settlement(claimed("a"), Done("a"), NOW_MS)
    assert backoff.settlement(claimed("a"), Failed("no"), NOW_MS) == Next("a", NOW_MS + 200)


def test_items_fail_each_for_themselves(backoff: Backoff) -> None:
    """One failing item delays no other item."""
    for _ in range(5):
        backoff.settlement(claimed("bad"), Failed("no"), NOW_MS)
    assert backoff.settlement(claimed("other"), Failed("no"), NOW_MS) == Next("other", NOW_MS + 200)


def test_a_lasting_failure_is_dead_at_once(backoff: Backoff, stats: DispatcherStats) -> None:
    """An item that can never be published is not tried again. The dead letter shows the reason."""
    settlement = backoff.settlement(claimed("a"), Failed("message too large", transient=False), NOW_MS)
    assert settlement == Dead("a", "message too large")
    assert (stats.failed, stats.in_doubt) == (1, 0)


def test_no_answer_is_a_doubt_and_released(backoff: Backoff, stats: DispatcherStats) -> None:
    """If an item has no answer, the broker may have it. The item is tried again and counts as a possible duplicate."""
    assert backoff.settlement(claimed("a"), None, NOW_MS) == Next("a", NOW_MS + 200)
    assert backoff.settlement(claimed("a"), Failed("cut off", in_doubt=True), NOW_MS) == Next("a", NOW_MS + 400)
    assert (stats.failed, stats.in_doubt) == (2, 2)


def test_the_item_that_failed_longest_ago_is_forgotten(backoff: Backoff, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the latest failed items are remembered, so a broker that is down for a day does not fill the memory."""
    monkeypatch.setattr("wheel_sched.dispatcher.in_flight._REMEMBERED", 10)
    for n in range(11):
        backoff.settlement(claimed(f"m{n}"), Failed("no"), NOW_MS)
    assert len(backoff._failures) == 10
    assert backoff.settlement(claimed("m10"), Failed("no"), NOW_MS) == Next("m10", NOW_MS + 400)
    assert backoff.settlement(claimed("m0"), Failed("no"), NOW_MS) == Next("m0", NOW_MS + 200)


def test_a_death_and_a_batch_that_failed_are_lines_of_the_log(
    backoff: Backoff, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for each item that becomes a dead letter, and one for all items of a batch that are tried
    again.

    Text from outside is escaped and shortened.
    """
    items = [claimed(name) for name in "abcd"]
    answers = [Done("a"), Failed("gone\x1b[31m" + "x" * 999, transient=False), Failed("away"), None]
    backoff.settlements(items, answers, NOW_MS)
    dead, again = (record.getMessage() for record in caplog.records)
    assert dead.startswith("dispatcher.dead: item 'b' of topic '': gone\\x1b[31mxxx")
    assert len(dead) < 300
    assert again == "dispatcher.not_published: 2 of 4 items, tried again later; the first: item 'c' of topic '': away"
    caplog.clear()
    backoff.settlements(items, [Done(name) for name in "abcd"], NOW_MS)
    assert caplog.records == []
