"""The delay store as a dispatcher sees it that may claim only what its process owns.

Calls pass through; three are changed on their way. A claim is made only in a shard that is ours, in our epoch, numbered
above the last that went out, and for ever: its lease never runs out, since only the broker knows whether it went out. A
claim's lease being extended keeps the shard ours. A settlement of a claim whose fate the publisher has not told is
answered here as stale: the claim stays open for whoever takes the shard over.

Claims that another process left open are an occasion to take a shard over as much as what is due: they may be the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from retry_topic.release.shard_ownership import Owned, Shards
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import InDoubt, StaleEpoch, StoreUnavailable, WheelSchedError
from wheel_sched.store import MAX_BATCH, DelayStore
from wheel_sched.store.begun import Begun, Performed
from wheel_sched.store.items import Claim, Outcome, Settled, Settlement, Swept, Window
from wheel_sched.store.operations import Call, ClaimDue, Extend, Look, Settle

Heads = TypeVar("Heads", bound=Claim | Settled | Swept | Window)

FOR_EVER_MS = 100 * 365 * 86_400_000
_LOOK_AGAIN_MS = 20  # while a take-over is under way


_MOST_WORKERS = 8  # shards that send at the same time: they wait for the broker most of it


def in_transactions(config: DispatcherConfig, shards: int) -> DispatcherConfig:
    """The settings of a dispatcher whose claims go out in transactions.

    One claim of a shard at a time, in the order of their numbers; a larger one, since a transaction costs the same
    whatever it holds; and none is given up by the clock, since only the broker knows what became of it.
    """
    batch = MAX_BATCH if config.batch == DispatcherConfig().batch else config.batch
    return replace(config, workers=min(shards, _MOST_WORKERS), batch=batch, publish_timeout_ms=FOR_EVER_MS)


class _Passed(NamedTuple):
    """A call that is made instead of the one that was asked for; a claim's tenure."""

    call: Call[Any]
    owned: Owned | None = None


class OwnedStore(DelayStore):
    """See the module.

    Args:
        store: the store itself; it stays the caller's.
        shards: which of it are ours.
    """

    def __init__(self, store: DelayStore, shards: Shards) -> None:
        super().__init__(store.backend, shards=store.shards)
        self._inner = store
        self.owned = shards
        self._told: dict[tuple[int, int], dict[str, Outcome]] = {}  # settled before their claim went out

    def __repr__(self) -> str:
        return f"<OwnedStore {self._inner!r} {self.owned!r}>"

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, a value or an exception for each, in order."""
        made = self._made(calls)
        passed = _passed(made)
        return self._answers(calls, made, self._inner.execute(passed) if passed else [])

    def begin(self, calls: Sequence[Call[Any]]) -> Begun:
        """`execute` in two halves: calls are changed on their way now, and answers when they are heard."""
        made = self._made(calls)
        passed = _passed(made)
        return _Begun(self, calls, made, self._inner.begin(passed) if passed else Performed([]))

    def close(self) -> None:
        """The store itself stays open."""

    def settle_early(self, claim: Claim, settlements: Sequence[Settlement]) -> None:
        """End items of a claim that will not go out with it, before it does.

        Raises:
            StoreError: some may be settled; repeat it.
        """
        if not settlements:
            return
        operation = Settle(claim.number, list(settlements))
        (answer,) = self._inner.execute([Call(claim.shard, operation)])
        if isinstance(answer, Exception):
            raise answer
        told = self._told.setdefault((claim.shard, claim.number), {})
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            told[settlement.id] = Outcome.DONE if outcome is Outcome.STALE else outcome

    # -- on the way out

    def _made(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """For each call the one to be made instead, or its answer."""
        made: list[Any] = []
        for call in calls:
            try:
                made.append(self._changed(call))
            except WheelSchedError as error:
                made.append(error)
        return made

    def _changed(self, call: Call[Any]) -> Any:
        """The call to be made instead, or its answer."""
        match call.operation:
            case ClaimDue() as claim:
                owned = self.owned.owned(call.shard)
                if owned is None:
                    return _Passed(Call(call.shard, Look(0, 0)))
                # an instance of its own, under the same token: a repeat must find what the first call made
                above = self.owned.above(call.shard, owned)
                made = replace(claim, lease_ms=FOR_EVER_MS, epoch=owned.epoch, above=above, lapse_cap=0)
                return _Passed(Call(call.shard, made), owned)
            case Extend() as extend:
                self.owned.renew(call.shard)
                return _Passed(Call(call.shard, replace(extend, lease_ms=FOR_EVER_MS)))
            case Settle() as settle:
                return self._settlement(call.shard, settle)
            case Look():
                self.owned.look()
        return _Passed(call)

    def _settlement(self, shard: int, settle: Settle) -> Any:
        if self.owned.is_open(shard, settle.claim):
            self._told.pop((shard, settle.claim), None)
            self.owned.abandon(shard, settle.claim)
            (window,) = self._inner.execute([Call(shard, Look(0, 0))])
            if isinstance(window, Exception):
                return window
            stale = [Outcome.STALE] * len(settle.settlements)
            return self._looks_again(shard, Settled(stale, window.now_us, window.due_head_ms, window.fly_head_ms))
        told = self._told.get((shard, settle.claim))
        if told:
            rest = [settlement for settlement in settle.settlements if settlement.id not in told]
            return _Passed(Call(shard, replace(settle, settlements=rest)))
        return _Passed(Call(shard, settle))

    # -- on the way back

    def _answers(self, calls: Sequence[Call[Any]], made: Sequence[Any], replies: Sequence[Any]) -> list[Any]:
        rest = iter(replies)
        return [
            self._heard(asked, instead.owned, next(rest)) if isinstance(instead, _Passed) else instead
            for asked, instead in zip(calls, made, strict=True)
        ]

    def _heard(self, asked: Call[Any], owned: Owned | None, reply: Any) -> Any:
        shard = asked.shard
        if isinstance(reply, StaleEpoch):
            self.owned.drop(shard)
        elif isinstance(reply, StoreUnavailable):
            self.owned.suspect()
        if isinstance(reply, InDoubt) and reply.answer is not None:
            reply.answer = self._heard(asked, owned, reply.answer)
        if isinstance(reply, Exception):
            return reply
        if isinstance(asked.operation, ClaimDue) and isinstance(reply, Window):
            return self._looks_again(shard, self._not_ours(shard, reply))
        if (
            isinstance(asked.operation, Look)
            and isinstance(reply, Window)
            and (reply.due_head_ms, reply.fly_head_ms) != (None, None)
        ):
            self.owned.prepare(shard)
        if isinstance(reply, Claim) and reply.items and owned is not None:
            self.owned.opened(shard, reply.number, owned)
        if isinstance(asked.operation, Settle) and isinstance(reply, Settled):
            told = self._told.pop((shard, asked.operation.claim), None)
            if told:
                rest = iter(reply.outcomes)
                reply.outcomes = [
                    told[settlement.id] if settlement.id in told else next(rest)
                    for settlement in asked.operation.settlements
                ]
        if isinstance(reply, Claim | Settled | Swept | Window):
            return self._looks_again(shard, reply)
        return reply

    def _not_ours(self, shard: int, window: Window) -> Claim:
        """An empty claim; what is due is looked at again when the shard may be ours."""
        head_ms = window.due_head_ms
        if head_ms is not None:
            head_ms = max(head_ms, self._again_ms(shard, window.now_us))
        return Claim(shard, 0, window.now_us, window.epoch, head_ms, window.fly_head_ms, [])

    def _looks_again(self, shard: int, reply: Heads) -> Heads:
        """Have the dispatcher come back when the shard may be ours, where claims are open that nobody else ends."""
        if reply.fly_head_ms is not None and not self.owned.settled(shard):
            reply.due_head_ms = self._again_ms(shard, reply.now_us)
        return reply

    def _again_ms(self, shard: int, now_us: int) -> int:
        return max(self.owned.elsewhere_until_ms(shard) + 1, now_us // 1000 + _LOOK_AGAIN_MS)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Calls of an `OwnedStore` that are on their way."""

    store: OwnedStore
    calls: Sequence[Call[Any]]
    made: Sequence[Any]
    begun: Begun

    def answers(self) -> list[Any]:
        """See `Begun`."""
        return self.store._answers(self.calls, self.made, self.begun.answers())


def _passed(made: Sequence[Any]) -> list[Call[Any]]:
    return [instead.call for instead in made if isinstance(instead, _Passed)]
