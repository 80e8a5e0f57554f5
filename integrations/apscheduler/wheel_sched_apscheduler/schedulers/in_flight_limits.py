"""InFlightLimits: how many occurrences of one jobstore each executor holds, and how many more may be claimed.

A claim takes all due jobs of a jobstore, not those of one executor. So when an executor is full, claiming waits for it
a while: most of the next jobs are for that executor. An executor that stays full for `PATIENCE_S` is slow, and the
others must not wait for it. Then claiming continues, and jobs for the slow executor go back into the store, where other
processes may claim them. This is paced: a backlog of any length costs a few percent of a core, and jobs that were put
back are due again faster than a slow executor at the default settings can take them.

Threads: any thread calls `leave`; the claiming thread calls the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheel_sched_apscheduler.occurrence import Occurrence

PATIENCE_S = 0.25
BACK_AFTER_S = 1.0  # a job that was put back is not due for at least this time
PACE_S = 0.001  # added for each one that was put back before; the next claim waits this long for each one put back
_WORTHWHILE = 32  # an executor has room when at least this fraction of its limit is free


class _ExecutorLoad:
    """The load of one executor."""

    __slots__ = ("full_since_s", "occurrences", "slow")

    def __init__(self) -> None:
        self.occurrences: set[Occurrence] = set()
        self.full_since_s: float | None = None
        self.slow = False


class InFlightLimits:
    """See the module.

    Args:
        executors: the names of all executors, read again each time.
        most: an executor with this many unfinished submissions is full.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, executors: Collection[str], most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._executors = executors
        self._most = most
        self._worthwhile = max(1, most // _WORTHWHILE)
        self._clock = clock
        self._loads: dict[str, _ExecutorLoad] = {}
        self._waiting = False
        self._away: deque[tuple[float, int]] = deque()  # what was put back: when it is due again, how many
        self._away_count = 0

    def __len__(self) -> int:
        return sum(len(load.occurrences) for load in self._loads.values())

    def room(self) -> tuple[int, float | None]:
        """How many jobs may be claimed. If none: also in how many seconds to ask again; None = `leave` will say."""
        answer = self._room()
        if not answer[0]:
            self._waiting = True
            answer = self._room()  # ask again: an end in between did not see that somebody waits
        if answer[0]:
            self._waiting = False
        return answer

    def _room(self) -> tuple[int, float | None]:
        now_s = self._clock()
        room = 0
        patience_s: float | None = None
        for name in list(self._executors):
            load = self._loads.get(name)
            free = self._most if load is None else self._most - len(load.occurrences)
            if free >= self._worthwhile:
                room = free if not room else min(room, free)
                if load is not None:
                    load.full_since_s = None
                    load.slow = load.slow and free < self._most // 2
            elif load is not None and not load.slow:
                if load.full_since_s is None:
                    load.full_since_s = now_s
                left_s = load.full_since_s + PATIENCE_S - now_s
                load.slow = left_s <= 0
                if not load.slow:
                    patience_s = left_s if patience_s is None else max(patience_s, left_s)
        if room and patience_s is not None:
            return 0, patience_s
        return room, None

    def admit(self, occurrence: Occurrence) -> bool:
        """Count a claimed occurrence. False: its executor is full, put the occurrence back."""
        name = occurrence.job.executor
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _ExecutorLoad()
        if len(load.occurrences) >= self._most:
            return False
        load.occurrences.add(occurrence)
        return True

    def put_back(self, count: int) -> float:
        """Note that `count` occurrences are put back. Returns the seconds until they must be due again."""
        now_s = self._clock()
        while self._away and self._away[0][0] <= now_s:
            self._away_count -= self._away.popleft()[1]
        delay_s = BACK_AFTER_S + self._away_count * PACE_S
        self._away.append((now_s + delay_s, count))
        self._away_count += count
        return delay_s

    def leave(self, occurrence: Occurrence) -> bool:
        """Note that an occurrence has ended. Returns whether to wake the thread that waits for room."""
        load = self._loads.get(occurrence.job.executor)
        if load is None:
            return False
        load.occurrences.discard(occurrence)
        if self._waiting and self._most - len(load.occurrences) >= self._worthwhile:
            self._waiting = False
            return True
        return False
