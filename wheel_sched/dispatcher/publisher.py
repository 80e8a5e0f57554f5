"""The publisher contract: the batch that a dispatcher gives, the answers, and the traits that a publisher declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Settle, Settlement
from wheel_sched.store.push import Pushed


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer for an item that was not published.

    Args:
        reason: why, in plain words.
        transient: True: the item waits with backoff and is tried again. False: it becomes a dead letter with this
            reason. Defaults to True.
        in_doubt: the broker may have the item nevertheless; it counts as a possible duplicate. Defaults to False.
    """

    reason: str
    transient: bool = True
    in_doubt: bool = False


Answer = Settlement | Failed


@dataclass(slots=True, eq=False)
class Batch:
    """Items of one claim that are published together.

    A publisher fills `answers` in place, all at once or item by item. An item whose answer is still None when the batch
    ends is in doubt. An answer may be a `Recur`: then the item waits again, and its occurrences are stored, in one
    step.
    """

    claim: Claim | Pushed
    items: list[Claimed]
    answers: list[Answer | None] = field(default_factory=list)
    settlements: list[Settlement] | None = None  # made from the answers, once
    settling: Settle | None = None  # the call that settles the batch; a repeat has the same token
    ended_early: dict[str, Outcome] | None = None  # items that left the claim before it was published, by id
    on_answered: Callable[[Batch], object] | None = None  # called when the last answer has come
    lease_until_ns: int = 0  # by the local monotonic clock; never later than the store's own end of the lease
    over: bool = False
    reached: int = 0  # all items before this place have answers; saves a search at each acknowledgement

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.items)

    def acknowledge(self, place: int, answer: Answer) -> None:
        """Give the answer for the item at index `place`. Any thread may call it, also after `publish` has returned.

        See `PublisherTraits.acknowledges_later`. The average cost of a call is the same for all batch sizes.
        """
        answers, on_answered = self.answers, self.on_answered
        answers[place] = answer
        if on_answered is None:
            return
        reached, end = self.reached, len(answers)
        while reached < end and answers[reached] is not None:
            reached += 1
        self.reached = reached  # a slower thread may then write a smaller value: the next call checks more answers
        if reached == end:
            on_answered(self)

    def outcomes_with(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of all items, in order: from `ended_early` for items in it, from `outcomes` for the others."""
        early, rest = self.ended_early or {}, iter(outcomes)
        return [early[item.id] if item.id in early else next(rest) for item in self.items]


@dataclass(frozen=True, slots=True)
class PublisherTraits:
    """What a dispatcher may rely on when it calls a publisher.

    A publisher that wraps another publisher makes its traits from the inner publisher's with `dataclasses.replace`.

    Args:
        never_waits: `publish` waits for nothing, because the broker is in this process. The dispatcher's owner thread
            calls `publish` itself, which saves two changes of thread per batch. Defaults to False.
        acknowledges_later: `publish` only sends, and the answers come by `Batch.acknowledge`. The dispatcher settles
            the batch after the last answer, or at the publish timeout with the answers that it has then. Defaults to
            False: an item that has no answer when `publish` returns is in doubt.
        transactional: each claim is published completely or not at all, and never twice, whichever process dies. The
            dispatcher gives the publisher the claims of a shard one at a time, in the order of their numbers. Timeouts
            do not end a claim: only the publisher learns from its broker whether it was published. Needs a claim source
            that owns its shards. Defaults to False.
    """

    never_waits: bool = False
    acknowledges_later: bool = False
    transactional: bool = False


class Publisher(Protocol):
    """Publishes due items to their target. A class that derives from it has the default traits."""

    @property
    def traits(self) -> PublisherTraits:
        """The properties that the dispatcher may rely on. The dispatcher reads them only in its constructor."""
        return PublisherTraits()

    def publish(self, batch: Batch) -> None:
        """Publish `batch.items`, and put an answer for each item into `batch.answers`.

        A worker thread makes this call, or the dispatcher's owner thread when the trait `never_waits` is set.

        Raises:
            Exception: the items without an answer are in doubt. The dispatcher counts them and tries them again after
                a delay. With the trait `transactional`, a claim with an unknown result stays open until its shard is
                taken over.
        """
        ...

    def refuse(self, item: Claimed, reason: str) -> Answer | None:
        """Decide about an item that the server could not push. Called only when the server pushes items itself.

        The dispatcher's owner thread makes this call, so it must not take long. None: the dispatcher gives the item to
        `publish`. If this method raises, the item waits with backoff.
        """
        ...
