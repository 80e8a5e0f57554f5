"""A claimed batch on its way out, and what a publisher answers for each of its items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from wheel_sched.store.items import Claim, Claimed, Pushed, Settlement
from wheel_sched.store.operations import Settle


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer: the item was not published.

    Args:
        reason: plain words.
        transient: True: released with backoff and tried again; False: dead with that reason. Defaults to True.
        in_doubt: the broker may have it all the same; counted as a possible duplicate. Defaults to False.
    """

    reason: str
    transient: bool = True
    in_doubt: bool = False


Answer = Settlement | Failed


@dataclass(slots=True, eq=False)
class Batch:
    """Items of one claim that are published together.

    A publisher fills `answers` in place, item by item if it likes: what is still None when it returns, raises or
    runs into the timeout is in doubt.
    """

    claim: Claim | Pushed
    items: list[Claimed]
    answers: list[Answer | None] = field(default_factory=list)
    settling: Settle | None = None
    told: Callable[[Batch], object] | None = None  # whom to tell when the last answer has come
    lease_until_ns: int = 0  # by the local monotonic clock; never later than the store's own end of the lease
    over: bool = False
    reached: int = 0  # every item before it has its answer, so that the last acknowledgement is found without a search

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.items)

    def acknowledge(self, place: int, answer: Answer) -> None:
        """Answer for the item at `place`, from any thread, also after `publish` has returned (see `Publisher`).

        Cost: each answer is passed once in all, however many threads there are and whatever their order.
        """
        answers, told = self.answers, self.told
        answers[place] = answer
        if told is None:
            return
        reached, end = self.reached, len(answers)
        while reached < end and answers[reached] is not None:
            reached += 1
        self.reached = reached  # a slower thread may set it back, to where it is true as well
        if reached == end:
            told(self)


class Publisher(Protocol):
    """Where due items go.

    What a publisher has not answered when `publish` returns is in doubt. One whose broker acknowledges later has a true
    attribute `asynchronous`: `publish` then only sends, the answers come by `Batch.acknowledge`, and the batch is
    settled with the last of them, or at the timeout with those there are. One with a true attribute `in_order` sends
    the batches of a shard as they are given, one at a time, and none twice whatever dies: it is given the next before
    the one before is settled.
    """

    def publish(self, batch: Batch) -> None:
        """Publish `batch.items` and put an answer for each into `batch.answers`; called from a worker thread.

        Raises:
            Exception: whatever is unanswered then is in doubt: released with backoff and counted.
        """
        ...

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """What to do with an item that the server could not push (one-script hand-over only)."""
        ...
