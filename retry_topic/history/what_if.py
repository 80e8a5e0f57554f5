"""What if another policy had decided: applies policies to recorded failures, and compares what they would have done.

Each policy gets the failures of a message in their recorded order, on a virtual clock. So the message fails as often as
it did, and then succeeds if it did, unless the policy gives it up earlier. If the message was given up, but the policy
still retries it, the last failure repeats until the policy gives up too. The present policies are applied in the same
way, so both results have the same errors. The difference between the present policies' result and the record shows how
large these errors are.

The functions are pure, and the same arguments give the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from retry_topic.history.attempt import Attempt
from retry_topic.policy.decision import DeadDecision, decide
from retry_topic.policy.failure import Failure
from retry_topic.policy.model import PolicySet, RetryPolicy

MAX_FURTHER = 100  # failures after the last recorded one, for each message
MAX_FURTHER_IN_ALL = 50_000  # for each set of policies: about half a second of work
MAX_TOPICS = 200

CANNOT_KNOW = (
    "whether a retry at another time would have succeeded: each attempt is taken to end as it did",
    "whether a further retry of a message that was given up would have succeeded: it is taken to fail",
    "what a rule by HTTP status or by a parent class would have matched: the history keeps only the class of an error",
    "what a handler or Retry-After had asked for: the history does not keep it",
    "how long flow control would have held retries back",
)
"""What no comparison with a history can say, one sentence each."""


@dataclass(slots=True)
class Doing:
    """What a set of policies would have done with the recorded failures.

    Args:
        retries: retries that the policies would have sent, `further` included.
        further: retries after the last recorded failure of messages that were given up.
        given_up: messages that the policies would have given up.
        lost: messages among these that succeeded at a later attempt.
        undecided: messages that were given up, but that the policies still retried when the comparison ended.
        wait_ms: median time from the first failure to giving up; None if the policies gave nothing up.
    """

    retries: int = 0
    further: int = 0
    given_up: int = 0
    lost: int = 0
    undecided: int = 0
    wait_ms: int | None = None


@dataclass(slots=True)
class TopicWhatIf:
    """The comparison for one topic, or for all.

    Args:
        messages: messages whose attempts are recorded from the first on.
        retries: recorded retries, also those that had not ended yet.
        succeeded, given_up, waiting: how many messages succeeded, were given up, and had not ended yet.
        wait_ms: median time from the first failure to giving up, as recorded; None if nothing was given up.
        present: what the present policies would have done.
        edited: what the edited policies would have done.
        earlier, later: messages that both give up, the edited policies earlier or later.
        shift_ms: median of how much later the edited policies give up, less than 0 for earlier; None without such
            messages.
    """

    messages: int = 0
    retries: int = 0
    succeeded: int = 0
    given_up: int = 0
    waiting: int = 0
    wait_ms: int | None = None
    present: Doing = field(default_factory=Doing)
    edited: Doing = field(default_factory=Doing)
    earlier: int = 0
    later: int = 0
    shift_ms: int | None = None


@dataclass(slots=True)
class WhatIf:
    """The comparison of two sets of policies over a history.

    Args:
        attempts: rows of the history.
        left_out: messages that were not used: their first attempts are missing, or their attempts contradict.
        first_ms, last_ms: start of the earliest and the latest attempt, epoch ms; None without rows.
        total: the comparison over all topics.
        topics: the comparison by topic, at most 200, the topic with the most messages first.
        more_topics: how many topics are not in `topics`.
    """

    attempts: int
    left_out: int
    first_ms: int | None
    last_ms: int | None
    total: TopicWhatIf
    topics: dict[str, TopicWhatIf]
    more_topics: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "cannot_know": list(CANNOT_KNOW)}


@dataclass(slots=True)
class _Fate:
    """What a policy does with one message. `dead_ms` is the time from the first failure to giving up, if it does."""

    retries: int
    further: int = 0
    dead_ms: int | None = None
    lost: bool = False
    undecided: bool = False


def what_if(rows: Iterable[Attempt], present: PolicySet, edited: PolicySet) -> WhatIf:
    """Compare what two sets of policies would have done with recorded attempts.

    Args:
        rows: the recorded attempts, in any order.
        present: the policies of today.
        edited: the policies to compare with them.
    """
    rows = list(rows)
    started_ms = [row.started_ms for row in rows]
    messages: dict[tuple[str, str], list[Attempt]] = {}
    for row in sorted(rows, key=lambda row: row.attempt):
        messages.setdefault((row.topic, row.id), []).append(row)
    sound = {key: attempts for key, attempts in messages.items() if _is_whole(attempts)}
    sides = (_PolicySide(present), _PolicySide(edited))
    by_topic: dict[str, _Sums] = {}
    total = _Sums()
    for number, ((topic, _), attempts) in enumerate(sorted(sound.items())):
        fates = [side.fate(topic, attempts, number) for side in sides]
        for sums in (total, by_topic.setdefault(topic, _Sums())):
            sums.add(attempts, *fates)
    ranked = sorted(by_topic, key=lambda topic: (-by_topic[topic].found.messages, topic))
    return WhatIf(
        attempts=len(rows),
        left_out=len(messages) - len(sound),
        first_ms=min(started_ms, default=None),
        last_ms=max(started_ms, default=None),
        total=total.result(),
        topics={topic: by_topic[topic].result() for topic in ranked[:MAX_TOPICS]},
        more_topics=max(0, len(ranked) - MAX_TOPICS),
    )


def _is_whole(attempts: Sequence[Attempt]) -> bool:
    """Whether attempts of one message are numbered from 1 on, and all but the last are failures with a retry."""
    return (
        [row.attempt for row in attempts] == list(range(1, len(attempts) + 1))
        and all(row.outcome == "failed" for row in attempts[:-1])
        and attempts[0].outcome != "ok"
    )


class _PolicySide:
    """One set of policies, and how many failures after the recorded ones it may still meet."""

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self._left = MAX_FURTHER_IN_ALL

    def fate(self, topic: str, attempts: Sequence[Attempt], seed: int) -> _Fate:
        """What the topic's policy does with a message. Equal seeds give both sides equal draws."""
        policy, rng = self._policies.for_topic(topic), random.Random(seed)
        failures = [row for row in attempts if row.outcome != "ok"]
        now_ms, previous_ms = 0, None
        for number, row in enumerate(failures, 1):
            due = _retry(policy, number, row.error_class, previous_ms, now_ms, rng)
            if due is None:
                return _Fate(number - 1, dead_ms=now_ms, lost=attempts[-1].outcome == "ok")
            now_ms, previous_ms = due, due - now_ms
        if attempts[-1].outcome != "dead":
            return _Fate(len(failures))
        most = min(MAX_FURTHER, self._left)
        for further in range(1, most + 1):
            self._left -= 1
            number = len(failures) + further
            due = _retry(policy, number, failures[-1].error_class, previous_ms, now_ms, rng)
            if due is None:
                return _Fate(number - 1, further, dead_ms=now_ms)
            now_ms, previous_ms = due, due - now_ms
        return _Fate(len(failures) + most, most + 1, undecided=True)


def _retry(
    policy: RetryPolicy, attempt: int, error_class: str | None, previous_ms: int | None, now_ms: int, rng: random.Random
) -> int | None:
    """When the policy retries after a failure, in ms after the first failure; None: it gives up."""
    failure = Failure(attempt=attempt, first_failed_ms=0, previous_delay_ms=previous_ms, error_class=error_class or "")
    decision = decide(policy, failure, now_ms, rng)
    return None if isinstance(decision, DeadDecision) else decision.due_ms


class _Sums:
    """Adds messages up to a `TopicWhatIf`."""

    def __init__(self) -> None:
        self.found = TopicWhatIf()
        self._waits_ms: list[int] = []
        self._dead_ms: tuple[list[int], list[int]] = ([], [])
        self._shifts_ms: list[int] = []

    def add(self, attempts: Sequence[Attempt], present: _Fate, edited: _Fate) -> None:
        found, last = self.found, attempts[-1]
        found.messages += 1
        found.retries += sum(row.outcome == "failed" for row in attempts)
        found.succeeded += last.outcome == "ok"
        found.waiting += last.outcome == "failed"
        if last.outcome == "dead":
            found.given_up += 1
            self._waits_ms.append(max(0, last.started_ms - attempts[0].started_ms))
        for doing, fate, dead_ms in zip((found.present, found.edited), (present, edited), self._dead_ms, strict=True):
            doing.retries += fate.retries
            doing.further += fate.further
            doing.lost += fate.lost
            doing.undecided += fate.undecided
            if fate.dead_ms is not None:
                doing.given_up += 1
                dead_ms.append(fate.dead_ms)
        if present.dead_ms is not None and edited.dead_ms is not None:
            shift_ms = edited.dead_ms - present.dead_ms
            self._shifts_ms.append(shift_ms)
            found.earlier += shift_ms < 0
            found.later += shift_ms > 0

    def result(self) -> TopicWhatIf:
        """The comparison of all added messages: the sums, and the medians of their times."""
        self.found.wait_ms, self.found.shift_ms = _median(self._waits_ms), _median(self._shifts_ms)
        self.found.present.wait_ms, self.found.edited.wait_ms = map(_median, self._dead_ms)
        return self.found


def _median(values: list[int]) -> int | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None
