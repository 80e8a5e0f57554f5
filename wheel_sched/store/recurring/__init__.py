"""Recurring items: a claimed item waits for its next due time, and its occurrences are stored, in one step.

An occurrence is a new item. The item waits again and its occurrences are stored, or neither happens. So each occurrence
is stored once, even if a process dies. The occurrences have the same shard as their item: give them its route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wheel_sched.errors import Rejected
from wheel_sched.store.core.burying import trim_dead_above
from wheel_sched.store.core.call import Argument, Plan, new_token
from wheel_sched.store.core.claim import NumberedClaim
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome
from wheel_sched.store.core.memory_item import check_batch
from wheel_sched.store.core.plans import Plans, shard_of
from wheel_sched.store.core.schedule import triples_of
from wheel_sched.store.core.settle import Next, Settle, Settled, Settlement, check_settlement, settle_items
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new

MOST_OCCURRENCES = 5
"""How many occurrences one settlement stores at most. Then a batch of 100 recurring items fits into one call."""


@dataclass(slots=True)
class Recur(Next):
    """A settlement: the item waits again, as with `Next`, and in the same step its occurrences are stored.

    When the item has another version than `version`, nothing is stored, and the item is due now: whoever claims it next
    sees its new record. A cancelled item leaves, and nothing is stored.

    Args:
        occurrences: new items with the item's shard, `MOST_OCCURRENCES` at most. One whose id exists is not stored.

    Raises:
        Rejected: raised by `check`: an occurrence is malformed, has another shard, or there are too many.
    """

    occurrences: Sequence[Item] = ()

    def check(self, shards: int | None = None) -> None:
        """Raise `Rejected` unless the store can carry out the settlement. Without `shards` the shard is not checked."""
        check_settlement(self)
        if len(self.occurrences) > MOST_OCCURRENCES:
            raise Rejected(
                f"item {self.id!r:.80}: at most {MOST_OCCURRENCES} occurrences a settlement, got: "
                f"{len(self.occurrences)}; nothing was settled"
            )
        for item in self.occurrences:
            item.check()
            if shards and shard_of(item.route or item.id, shards) != shard_of(self.route or self.id, shards):
                raise Rejected(
                    f"item {self.id!r:.80}: its occurrence {item.id!r:.80} has another shard; give it the route of the "
                    "item; nothing was settled"
                )


def settle_recurring(
    plans: Plans,
    claim: NumberedClaim,
    settlements: Sequence[Settlement],
    *,
    dead_cap: int = 0,
    token: str | None = None,
) -> Plan[Settled]:
    """End items of a claim as `DelayStore.settle` does; a `Recur` among them also stores its occurrences.

    An item with another version than its settlement names waits again and is due now (OTHER_VERSION). For a minute, a
    repeat with the same `token` settles and stores nothing, and gives the first answer.

    Raises:
        Rejected: a settlement is malformed, or there are too many; nothing was settled.
    """
    if len(settlements) > MAX_BATCH:
        raise Rejected(f"at most {MAX_BATCH} settlements a call, got: {len(settlements)}; nothing was settled")
    for settlement in settlements:
        if isinstance(settlement, Recur):
            settlement.check(plans.shards)
        else:
            check_settlement(settlement)
    if sum(len(s.occurrences) for s in settlements if isinstance(s, Recur)) > MAX_BATCH:
        raise Rejected(f"at most {MAX_BATCH} occurrences a call; nothing was settled")
    return (
        yield from plans.one(claim.shard, SettleRecurring(claim.number, settlements, dead_cap, token or new_token()))
    )


class Recurring(Capability):
    """Settles recurring items of a store together with their occurrences."""

    settle = blocking(settle_recurring)


class AsyncRecurring(AsyncCapability):
    """The asyncio twin of `Recurring`."""

    settle = awaited(settle_recurring)


@dataclass(slots=True)
class SettleRecurring(Settle):
    """End items of a claim, and store the occurrences of each `Recur` that was settled (DONE)."""

    script = "settle_recurring"
    claim: int
    settlements: Sequence[Settlement]
    dead_cap: int = 0
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        rest = self.order()[1]
        args: list[Argument] = [*Settle.argv(self)]
        args.insert(3, len(rest))
        for place, i in enumerate(rest, 1):
            settlement = self.settlements[i]
            if isinstance(settlement, Recur) and settlement.occurrences:
                args += [place, len(settlement.occurrences), *triples_of(settlement.occurrences)]
        return args

    def in_memory(self, shard: MemoryShard) -> Settled:
        said = shard.answers.recall(self.token)
        if said is not None:
            return Settled(list(said), shard.now_us, *shard.heads())
        check_batch(len(self.settlements))
        check_batch(sum(len(s.occurrences) for s in self.settlements if isinstance(s, Recur)))
        outcomes = settle_items(shard, self.claim, self.settlements, self.order(), back=True)
        for settlement, outcome in zip(self.settlements, outcomes, strict=True):
            if isinstance(settlement, Recur) and outcome is Outcome.DONE:
                store_new(shard, settlement.occurrences)
        trim_dead_above(shard, self.dead_cap, MAX_BATCH)
        shard.answers.record(self.token, tuple(outcomes))
        return Settled(outcomes, shard.now_us, *shard.heads())
