"""The publisher contract: what a dispatcher hands over, what comes back, and which traits a publisher declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Settle, Settlement
from wheel_sched.store.push.operations import Pushed


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer: the item was not published.

    Args:
        reason: plain words.
        transient: True: the item waits with backoff and is tried again; False: it is dead with that reason. Defaults
            to True.
        in_doubt: the broker may have the item all the same; it counts as a possible duplicate. Defaults to False.
    """

    reason: str
    transient: bool = True
    in_doubt: bool = False


Answer = Settlement | Failed


@dataclass(slots=True, eq=False)
class Batch:
    """Items of one claim that are published together.

    A publisher fills `answers` in place, item by item if it likes. An item whose answer is still None when the batch
    ends is in doubt.
    """

    claim: Claim | Pushed
    items: list[Claimed]
    answers: list[Answer | None] = field(default_factory=list)
    settlements: list[Settlement] | None = None  # what the answers mean; decided once
    settling: Settle | None = None  # the operation that ends the batch; repeated under one token
    ended_early: dict[str, Outcome] | None = None  # items that left the claim before it went out, by id
    on_answered: Callable[[Batch], object] | None = None  # called when the last answer has come
    lease_until_ns: int = 0  # by the local monotonic clock; never later than the store's own end of the lease
    over: bool = False
    reached: int = 0  # every item before it has its answer, so that the last acknowledgement is found without a search

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.items)

    def acknowledge(self, place: int, answer: Answer) -> None:
        """Answer for the item at `place`, from any thread, also after `publish` has returned.

        See `PublisherTraits.acknowledges_later`. Cost: each answer is passed once in all, however many threads there
        are and whatever their order.
        """
        answers, on_answered = self.answers, self.on_answered
        answers[place] = answer
        if on_answered is None:
            return
        reached, end = self.reached, len(answers)
        while reached < end and answers[reached] is not None:
            reached += 1
        self.reached = reached  # a slower thread may set it back, to where it is true as well
        if reached == end:
            on_answered(self)

    def outcomes_with(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of all items: of those that ended early, and `outcomes` of the others, in order."""
        early, rest = self.ended_early or {}, iter(outcomes)
        return [early[item.id] if item.id in early else next(rest) for item in self.items]


@dataclass(frozen=True, slots=True)
class PublisherTraits:
    """What a dispatcher may rely on when it calls a publisher. A wrapper derives its own with `dataclasses.replace`.

    Args:
        never_waits: `publish` waits for nothing, because the broker is in this process. The dispatcher calls it in its
            own thread, which spares two changes of thread a batch. Defaults to False.
        acknowledges_later: `publish` only sends, and the answers come by `Batch.acknowledge`. The dispatcher settles
            the batch with the last answer, or at the publish timeout with the answers there are. Defaults to False: an
            item without an answer is in doubt when `publish` returns.
        transactional: each claim goes out whole or not at all, and none twice whatever dies. The dispatcher gives the
            publisher the claims of a shard one at a time, in the order of their numbers, and never gives one up by the
            clock: only the publisher learns from its broker what became of it. Needs a claim source that owns its
            shards. Defaults to False.
    """

    never_waits: bool = False
    acknowledges_later: bool = False
    transactional: bool = False


class Publisher(Protocol):
    """Where due items go. A class that derives from it has the default traits."""

    @property
    def traits(self) -> PublisherTraits:
        """What the dispatcher may rely on; read once, when the dispatcher is made."""
        return PublisherTraits()

    def publish(self, batch: Batch) -> None:
        """Publish `batch.items` and put an answer for each into `batch.answers`; called from a worker thread.

        Raises:
            Exception: items without an answer are in doubt then: released with backoff and counted.
        """
        ...

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """What to do with an item that the server could not push (one-script hand-over only)."""
        ...
