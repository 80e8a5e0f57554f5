"""From answers to settlements: an item that was not published waits, each time twice as long, or is dead.

The failures of an item are counted here and not in the store: they describe the broker's health as this dispatcher sees
it, not the message. The memory is bounded: the item that failed longest ago is forgotten and starts with the first
delay again. One owner.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.publisher import Answer, Failed
from wheel_sched.dispatcher.statistics import DispatcherStats
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settlement, check_settlement

logger = logger_of("wheel_sched.dispatcher")

_REMEMBERED = 100_000
_UNANSWERED = Failed("no answer from the broker", in_doubt=True)


class Backoff:
    """Turns a publisher's answers into settlements."""

    def __init__(self, config: DispatcherConfig, stats: DispatcherStats) -> None:
        self._config = config
        self._stats = stats
        self._failures: OrderedDict[str, int] = OrderedDict()

    def settlements(self, items: Sequence[Claimed], answers: Sequence[Answer | None], now_ms: int) -> list[Settlement]:
        """The settlements of the items of a batch."""
        if not self._failures:
            done = [a for item, a in zip(items, answers, strict=True) if type(a) is Done and a.id == item.id]
            if len(done) == len(items):  # the usual case
                return list[Settlement](done)
        pairs = list(zip(items, answers, strict=True))
        if logger.isEnabledFor(logging.WARNING):
            _report(pairs)
        return [self.settlement(item, answer, now_ms) for item, answer in pairs]

    def settlement(self, item: Claimed, answer: Answer | None, now_ms: int) -> Settlement:
        """The settlement of `item`. An answer None means: in doubt, and released like after any other failure."""
        if type(answer) is Done and answer.id == item.id:
            if self._failures:
                self._failures.pop(item.id, None)
            return answer
        if answer is None:
            answer = _UNANSWERED
        if not isinstance(answer, Failed):
            self._failures.pop(item.id, None)
            problem = _problem(item, answer)
            if problem is None:
                return answer
            reason = f"the publisher's answer cannot be carried out: {problem}"
            logger.warning("dispatcher.dead: item '%.100s' of topic '%.100s': %.200s", item.id, item.topic, reason)
            return Dead(item.id, reason)
        self._stats.failed += 1
        self._stats.in_doubt += answer.in_doubt
        if not answer.transient:
            self._failures.pop(item.id, None)
            return Dead(item.id, answer.reason)
        count = self._failures.pop(item.id, 0) + 1
        self._failures[item.id] = count
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
        delay_ms = min(self._config.backoff_ms * 2 ** min(count - 1, 20), self._config.backoff_max_ms)
        return Next(item.id, now_ms + delay_ms)


def _report(pairs: Sequence[tuple[Claimed, Answer | None]]) -> None:
    """Log each item that is given up. Log all items of a batch that are tried again in one line."""
    failed = [(item, _UNANSWERED if answer is None else answer) for item, answer in pairs]
    again: list[tuple[Claimed, Failed]] = []
    for item, answer in failed:
        if isinstance(answer, Dead) or (isinstance(answer, Failed) and not answer.transient):
            logger.warning(
                "dispatcher.dead: item '%.100s' of topic '%.100s': %.200s", item.id, item.topic, answer.reason
            )
        elif isinstance(answer, Failed):
            again.append((item, answer))
    if again:
        item, first = again[0]
        logger.warning(
            "dispatcher.not_published: %d of %d items, tried again later; the first: item '%.100s' of topic '%.100s': "
            "%.200s",
            *(len(again), len(pairs), item.id, item.topic, first.reason),
        )


def _problem(item: Claimed, answer: object) -> str | None:
    """Why the store cannot settle `item` with this answer; a publisher's mistake must not stop other messages."""
    if not isinstance(answer, Done | Next | Held | Dead):
        return f"expected Done, Next, Held, Dead or Failed, got: {answer!r}"
    if answer.id != item.id:
        return f"it is about {answer.id!r}"
    try:
        check_settlement(answer)
    except Rejected as error:
        return str(error)
    return None
