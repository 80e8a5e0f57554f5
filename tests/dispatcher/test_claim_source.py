"""The claim source with shared leases, and how a dispatcher uses the answers of another claim source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Batch, ClaimSource, Dispatcher, DispatcherConfig, PushTarget, SharedLeases
from wheel_sched.errors import ConfigError, StaleEpoch, StoreUnavailable
from wheel_sched.store import Claim, Claimed, DelayStore, Done, Item, Settlement, Window, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.counts import Look
from wheel_sched.store.push import PushDue

if TYPE_CHECKING:
    from conftest import World


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as store:
        yield store


class Gate(SharedLeases):
    """Shared leases that the test can block: then `claim` claims nothing or raises an error."""

    def __init__(self, store: DelayStore, config: DispatcherConfig) -> None:
        super().__init__(store, config)
        self.again_ms: int | None = None  # the source allows no claim until this time; None: it allows claims
        self.error: Exception | None = None
        self.unknown = False  # whether the result of a claim is unknown
        self.asked = 0
        self.failures: list[Exception] = []

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.look(shard) if self.again_ms is not None else super().claim(shard, limit, epoch)

    def next_look_ms(self, shard: int, due_head_ms: int | None, lease_head_ms: int | None, now_ms: int) -> int | None:
        head_ms = super().next_look_ms(shard, due_head_ms, lease_head_ms, now_ms)
        return head_ms if self.again_ms is None or head_ms is None else max(head_ms, self.again_ms)

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        return None if self.unknown else settlements

    def failed(self, call: Call[Any], error: Exception) -> None:
        self.failures.append(error)


def gated(world: World) -> tuple[Dispatcher, Gate]:
    """Return a dispatcher that is not started yet, and its claim source, a `Gate`."""
    gate = Gate(world.store, DispatcherConfig())
    return world.dispatcher(claims=gate, start=False), gate


def test_shared_leases_claim_or_push_due_items(store: DelayStore) -> None:
    """`claim` returns a call with the configured lease and the epoch that the dispatcher has read. With a push
    target, the call makes the server push the items."""
    config = DispatcherConfig(lease_ms=7_000, lapse_cap=3)
    claim = SharedLeases(store, config).claim(0, 5, 2).operation
    assert isinstance(claim, ClaimDue)
    assert (claim.limit, claim.lease_ms, claim.epoch, claim.lapse_cap) == (5, 7_000, 2, 3)
    push = SharedLeases(store, config, PushTarget("p:", True, 9)).claim(0, 5, None).operation
    assert isinstance(push, PushDue)
    assert (push.limit, push.lease_ms, push.prefix, push.create, push.maxlen) == (5, 7_000, "p:", True, 9)
    assert isinstance(SharedLeases(store, config).look(0).operation, Look)


@pytest.mark.parametrize(("due_ms", "lease_ms", "next_ms"), [(None, None, None), (5, None, 5), (None, 7, 7), (9, 7, 7)])
def test_shared_leases_look_again_at_the_next_due_or_lease_end(
    store: DelayStore, due_ms: int | None, lease_ms: int | None, next_ms: int | None
) -> None:
    """The next look is at the earlier of the next due time and the next end of a lease, because items of an ended
    lease are due again."""
    assert SharedLeases(store, DispatcherConfig()).next_look_ms(0, due_ms, lease_ms, 0) == next_ms


def test_shared_leases_extend_a_batch_that_is_still_claimed(store: DelayStore) -> None:
    """`extend` returns False if the claim of the batch has ended, because another dispatcher may have the items."""
    source: ClaimSource = SharedLeases(store, DispatcherConfig())
    store.schedule([Item("a", 0, b"")])
    claim = store.claim()
    batch = Batch(claim, claim.items)
    assert source.extend(batch)
    assert source.to_settle(batch, [Done("a")]) == [Done("a")]
    store.settle(claim, [Done("a")])
    assert not source.extend(batch)
    assert not source.extend(Batch(Claim(0, 99, 0, 1, None, None, []), [Claimed("b", 0, 1, "", b"")]))


def test_a_shard_that_may_not_be_claimed_from_is_looked_at_when_the_source_says(world: World) -> None:
    """If the claim source allows the next look at a shard in 500 ms, the dispatcher neither looks nor claims
    earlier."""
    dispatcher, gate = gated(world)
    world.put("a")
    gate.again_ms = world.now_ms + 500
    dispatcher.start()
    world.calm()
    world.advance(499)
    assert (gate.asked, dispatcher.stats.claims, world.receiver.ids) == (0, 0, [])
    gate.again_ms = None
    world.advance(1)
    assert [item.id for item in world.received(1)] == ["a"]


def test_a_batch_with_an_unknown_result_is_forgotten_and_its_claim_stays_open(world: World) -> None:
    """If the claim source does not know how a batch ended, the batch's items count as stale, and the dispatcher reads
    the shard again."""
    dispatcher, gate = gated(world)
    gate.unknown = True
    dispatcher.start()
    world.put("a")
    world.until(lambda: dispatcher.stats.stale == 1)
    world.calm()
    assert (dispatcher.stats.in_flight, dispatcher.stats.published, world.state("a")) == (0, 0, "leased")
    assert dispatcher.ready


@pytest.mark.parametrize("error", [StaleEpoch("old"), StoreUnavailable("away")])
def test_a_source_that_cannot_claim_now_is_asked_again(world: World, error: Exception) -> None:
    """If `claim` raises `StaleEpoch`, the dispatcher reads the shard at once. After a store error it waits first."""
    dispatcher, gate = gated(world)
    gate.error = error
    dispatcher.start()
    world.put("a")
    world.until(lambda: gate.asked > 0)
    gate.error = None
    world.calm()
    if isinstance(error, StoreUnavailable):
        world.advance(1_000)
    world.received(1)
    assert (dispatcher.stats.store_errors > 0) is isinstance(error, StoreUnavailable)


def test_a_source_gets_the_errors_of_its_calls(world: World, watch: Any) -> None:
    """If the store refuses a claim, the claim source gets the error, from which it can learn that a shard has a new
    owner."""
    calls = watch(world.store)
    dispatcher, gate = gated(world)
    dispatcher.start()
    world.calm()
    calls.failures["claim"] = [StaleEpoch("the epoch is 2")]
    world.put("a")
    world.received(1)
    assert [type(error) for error in gate.failures] == [StaleEpoch]


def test_push_and_a_claim_source_exclude_each_other(store: DelayStore) -> None:
    """A dispatcher refuses `push` together with `claims`, because items that the server pushes never reach a claim
    source."""
    source = SharedLeases(store, DispatcherConfig())
    with pytest.raises(ConfigError, match="got both"):
        Dispatcher(store, None, push=PushTarget(), claims=source)  # type: ignore[arg-type]


def test_a_window_is_reported_before_its_shard_is_claimed_from(world: World) -> None:
    """The dispatcher tells its claim source what waits in a shard before it claims there, so that the source can
    prepare."""
    order: list[str] = []
    dispatcher, gate = gated(world)
    looked, claim = gate.looked, gate.claim

    def noted_look(window: Window) -> None:
        order.append("looked")
        looked(window)

    def noted_claim(shard: int, limit: int, epoch: int | None) -> Call[Any]:
        order.append("claim")
        return claim(shard, limit, epoch)

    gate.looked, gate.claim = noted_look, noted_claim  # type: ignore[method-assign]  # doubles of two methods
    world.put("a")
    dispatcher.start()
    world.received(1)
    assert order[:2] == ["looked", "claim"]
