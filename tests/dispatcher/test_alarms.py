"""When the dispatcher looks at a shard or a batch, on the store's time."""

from __future__ import annotations

import pytest

from wheel_sched.dispatcher.alarms import Alarms, ExtendLease, LookAtShard
from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.store.core.claim import Claim

SWEEP_MS = 60_000


@pytest.fixture
def alarms() -> Alarms:
    return Alarms(SWEEP_MS)


def batch() -> Batch:
    return Batch(Claim(0, 1, 0, 0, None, None, []), [])


def test_a_shard_has_one_alarm_and_the_last_call_moves_it(alarms: Alarms) -> None:
    """To a later time as well as to an earlier one."""
    alarms.look_at(3, 500, 0)
    alarms.look_at(3, 900, 0)
    assert (len(alarms), alarms.next_ms()) == (1, 900)
    alarms.look_at(3, 200, 0)
    assert alarms.due(199) == []
    assert alarms.due(200) == [LookAtShard(3)]
    assert (len(alarms), alarms.next_ms(), alarms.due(5_000)) == (0, None, [])


def test_an_earlier_alarm_may_stay(alarms: Alarms) -> None:
    """When only a part of the shard's heads is known, an earlier alarm stays."""
    alarms.look_at(3, 500, 0)
    alarms.look_at(3, 900, 0, unless_earlier=True)
    assert alarms.next_ms() == 500
    alarms.look_at(3, 400, 0, unless_earlier=True)
    assert alarms.next_ms() == 400


def test_a_shard_that_waits_for_long_is_swept_before(alarms: Alarms) -> None:
    """At most one sweep interval passes between two looks; the alarm says that nothing is due."""
    alarms.look_at(3, 100 + SWEEP_MS + 1, 100)
    alarms.look_at(4, 100 + SWEEP_MS, 100)
    assert alarms.due(100 + SWEEP_MS) == [LookAtShard(3, sweep=True), LookAtShard(4)]


def test_a_shard_without_items_has_no_alarm(alarms: Alarms) -> None:
    """Also when the shard had no alarm before."""
    alarms.look_at(3, 500, 0)
    alarms.forget_shard(3)
    alarms.forget_shard(4)
    assert (len(alarms), alarms.next_ms()) == (0, None)


def test_a_batch_is_out_until_it_is_done(alarms: Alarms) -> None:
    """The owner sets its alarm again each time; this does not end the wait for the batch."""
    out = batch()
    alarms.extend_lease(out, 10_000)
    assert (alarms.out(), alarms.batches, alarms.is_out(out), len(alarms)) == (1, [out], True, 0)
    assert alarms.due(10_000) == [ExtendLease(out)]
    assert alarms.is_out(out)
    alarms.extend_lease(out, 20_000)
    alarms.done(out)
    alarms.done(out)
    assert (alarms.out(), alarms.next_ms(), alarms.due(20_000)) == (0, None, [])


def test_a_clock_that_went_back_makes_nothing_due_before_its_time(alarms: Alarms) -> None:
    """Alarms can still be moved and removed."""
    out = batch()
    alarms.due(50_000)
    for shard in (1, 2, 3):
        alarms.look_at(shard, 60_000, 50_000)
    alarms.extend_lease(out, 55_000)
    assert alarms.due(45_000) == []
    alarms.look_at(4, 46_000, 45_000)
    alarms.look_at(1, 47_000, 45_000)
    alarms.forget_shard(2)
    alarms.done(out)
    assert alarms.due(46_000) == [LookAtShard(4)]
    assert alarms.due(47_000) == [LookAtShard(1)]
    assert alarms.due(59_999) == []
    assert alarms.due(60_000) == [LookAtShard(3)]


def test_after_a_jump_shards_are_forgotten_and_batches_are_looked_at(alarms: Alarms) -> None:
    """The jump may go in either direction."""
    out = batch()
    alarms.due(1_000_000)
    alarms.look_at(1, 1_000_500, 1_000_000)
    alarms.extend_lease(out, 1_010_000)
    alarms.restart(5_000, 15_000)
    assert (len(alarms), alarms.next_ms()) == (0, 15_000)
    assert alarms.due(15_000) == [ExtendLease(out)]


def test_after_a_failed_turn_a_batch_is_settled_again_once(alarms: Alarms) -> None:
    """Batches that another part works on stay; batches without an end are forgotten."""
    known, over, unanswered = batch(), batch(), batch()
    over.over = True
    for each in (known, over, unanswered):
        alarms.extend_lease(each, 10_000)
    assert alarms.after_failure({known}) == [over]
    assert alarms.batches == [known, over]
    assert alarms.after_failure({known}) == []
    assert alarms.batches == [known]
