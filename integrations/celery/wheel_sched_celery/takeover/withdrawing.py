"""What a worker has handed to its own timer although the store may have it too, or got it all the same, too late.

Else such a task runs twice: from the timer, and from the store. So it is taken out of the store when that answers
again. That is safe only while the message is this worker's. Whoever acknowledges another copy of it, because it waits
in the store, puts his name to the item before (`Wheel.waits`); what has another one's name stays.

Threads: the store's, but for `pending`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched_celery.wheel import Wheel

logger = logger_of("wheel_sched.celery")

LOOK_AGAIN_S: Final = 1.0
MOST: Final = 10_000
_LOOKS: Final = 2  # a server that goes on may answer us before it gets to what was sent to it while it hung
_BATCH: Final = 100


class Doubts:
    """The items of one connection's messages that are to be withdrawn.

    Args:
        wheel: whose store.
    """

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._looks: dict[str, int] = {}  # item -> how often it is still looked for

    @property
    def pending(self) -> bool:
        return bool(self._looks)

    def add(self, item_ids: Iterable[str]) -> None:
        """The store may have these, and their messages are the worker's timer's."""
        dropped = 0
        for item_id in item_ids:
            if len(self._looks) < MOST or item_id in self._looks:
                self._looks[item_id] = _LOOKS
            else:
                dropped += 1
        if dropped:
            logger.warning("celery.not_withdrawn: %d more tasks may be in the store too, and run twice", dropped)

    def discard(self, item_ids: Iterable[str]) -> None:
        """A copy of these messages is about to be acknowledged: the store's is the one that runs."""
        for item_id in item_ids:
            self._looks.pop(item_id, None)

    def clear(self) -> None:
        self._looks.clear()

    def withdraw(self) -> None:
        """Take them out of the store, if it answers."""
        asked = list(self._looks)
        for at in range(0, len(asked), _BATCH):
            batch = asked[at : at + _BATCH]
            if not self._wheel.near:
                return
            try:
                there = self._wheel.withdraw(batch)
            except WheelSchedError:  # it was said when it came up
                return
            for item_id in batch:
                self._looks[item_id] -= 1
                if item_id in there or self._looks[item_id] <= 0:
                    del self._looks[item_id]
