"""When, by the store's time, the dispatcher looks at a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from wheel_sched.dispatcher import DispatcherConfig, SharedLeases
from wheel_sched.dispatcher.due_shards import DueShards
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.sweep import Sweep
from wheel_sched.store.fair_shares.operations import PreparedDue

if TYPE_CHECKING:
    from conftest import World

SWEEP_MS = 60_000


@pytest.fixture
def shards(wide: World) -> DueShards:
    """The alarms of eight shards, each of which the dispatcher has read once."""
    config = DispatcherConfig(sweep_ms=SWEEP_MS)
    shards = DueShards(8, SharedLeases(wide.store, config), config)
    for shard in range(8):
        shards.read(shard, 1)
    return shards


class Calls(NamedTuple):
    """The shards from which the dispatcher claims in one step, and the shards that it sweeps."""

    claims: list[int]
    sweeps: list[int]


def due(shards: DueShards, now_ms: int) -> Calls:
    """The claims and sweeps that the dispatcher makes at `now_ms`. The store answers each sweep at once."""
    shards.run_due(now_ms)
    claims, sweeps = shards.claim_calls(8, 80, 2_000, lambda _: True, []), shards.sweep_calls()
    assert all(isinstance(call.operation, ClaimDue) for call in claims)
    assert all(isinstance(call.operation, Sweep) for call in sweeps)
    for call in sweeps:
        shards.swept(call.shard, now_ms)
    return Calls([call.shard for call in claims], [call.shard for call in sweeps])


def test_a_shard_has_one_alarm_and_the_last_call_moves_it(shards: DueShards) -> None:
    """A call of `look_at` can move the alarm to a later time or to an earlier one."""
    shards.look_at(3, 500, 0)
    shards.look_at(3, 900, 0)
    assert (len(shards), shards.next_ms()) == (1, 900)
    shards.look_at(3, 200, 0)
    assert due(shards, 199) == Calls([], [])
    assert due(shards, 200) == Calls([3], [])
    assert (len(shards), shards.next_ms(), due(shards, 5_000)) == (0, None, Calls([], []))


def test_an_earlier_alarm_may_stay(shards: DueShards) -> None:
    """`look_at` with `keep` moves an alarm to an earlier time, but not to a later one."""
    shards.look_at(3, 500, 0)
    shards.look_at(3, 900, 0, keep=True)
    assert shards.next_ms() == 500
    shards.look_at(3, 400, 0, keep=True)
    assert shards.next_ms() == 400


def test_a_shard_that_waits_for_long_is_swept_before(shards: DueShards) -> None:
    """A shard whose next item is due in more than one sweep interval is swept after one interval."""
    shards.look_at(3, 100 + SWEEP_MS + 1, 100)
    shards.look_at(4, 100 + SWEEP_MS, 100)
    assert due(shards, 100 + SWEEP_MS) == Calls([4], sweeps=[3])


def test_a_busy_shard_is_swept_too(shards: DueShards) -> None:
    """A shard that is claimed from every second is also swept once in each sweep interval."""
    for now_ms in range(0, SWEEP_MS, 1_000):
        shards.look_at(3, now_ms + 1_000, now_ms)
        assert due(shards, now_ms + 1_000) == Calls([3], [])
    shards.look_at(3, SWEEP_MS + 1_000, SWEEP_MS)
    assert due(shards, SWEEP_MS) == Calls([], sweeps=[3])


def test_a_shard_without_items_has_no_alarm(shards: DueShards) -> None:
    """`look_at` with the time None removes the shard's alarm. For a shard without an alarm this is no error."""
    shards.look_at(3, 500, 0)
    shards.look_at(3, None, 0)
    shards.look_at(4, None, 0)
    assert (len(shards), shards.next_ms()) == (0, None)


def test_a_clock_that_went_back_makes_nothing_due_before_its_time(shards: DueShards) -> None:
    """After the clock was set back, no shard is due before its alarm, and alarms can still be set, moved and
    removed."""
    shards.run_due(50_000)
    for shard in (1, 2, 3):
        shards.look_at(shard, 60_000, 50_000)
    assert due(shards, 45_000) == Calls([], [])
    shards.look_at(4, 46_000, 45_000)
    shards.look_at(1, 47_000, 45_000)
    shards.look_at(2, None, 45_000)
    assert due(shards, 46_000) == Calls([4], [])
    assert due(shards, 47_000) == Calls([1], [])
    assert due(shards, 59_999) == Calls([], [])
    assert due(shards, 60_000) == Calls([3], [])


@pytest.mark.parametrize("now_ms", [5_000, 5_000_000], ids=["back", "forward"])
def test_after_a_jump_all_shards_are_forgotten_and_read_again(shards: DueShards, now_ms: int) -> None:
    """When the store's clock jumps, the dispatcher drops all alarms, because their times are of the old clock."""
    shards.run_due(1_000_000)
    shards.look_at(1, 1_000_500, 1_000_000)
    shards.clock_jumped(now_ms)
    assert (len(shards), shards.next_ms()) == (0, None)
    assert shards.unread == set(range(8))
    assert [call.shard for call in shards.look_calls()] == list(range(8))
    shards.read(1, 2)
    shards.look_at(1, now_ms + 10, now_ms)
    assert due(shards, now_ms + 10) == Calls([1], [])


def test_a_busy_shard_is_prepared_at_intervals(shards: DueShards) -> None:
    """A preparation that found items is repeated soon, and the dispatcher wakes for it. It is never made at once."""
    shards.look_at(3, 0, 0)
    assert [call.shard for call in shards.prepare_calls(0)] == [3]
    shards.prepared(3, PreparedDue(3, 0, 0, None, fair=True, more=True), 0)
    assert (shards.prepare_calls(9), shards.next_preparation_ms()) == ([], 10)
    assert [call.shard for call in shards.prepare_calls(10)] == [3]
    shards.prepared(3, PreparedDue(3, 0, 0, None, fair=True, more=False), 10)
    assert shards.next_preparation_ms() is None
