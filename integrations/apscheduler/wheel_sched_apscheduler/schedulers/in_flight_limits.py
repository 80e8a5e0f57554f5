"""How much each executor has in hand of one job store, and how many jobs may be claimed for them.

A store is asked for what is due, not for what is due for some executor. So a full executor is waited for as long as it
makes room soon: most of what comes next is its own. One that stays full for `PATIENCE_S` is slow, and the others must
not wait for it: claiming goes on, and what turns out to be for the slow one goes back into the store, where other
processes may have it. That is paced: a backlog of any length costs a few percent of a core, and what was put back comes
again faster than what is slow at the default settings could take it.

Threads: `landed` may be called from any, the rest by the one that claims.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheel_sched_apscheduler.occurrence import Fire

PATIENCE_S = 0.25
BACK_AFTER_S = 1.0  # what is put back stays away at least so long
PACE_S = 0.001  # and so much longer for each that is away already; the next claim waits as long for each put back
_WORTHWHILE = 32  # an executor has room when this part of what it may have is free, at least


class _Load:
    """One executor's share."""

    __slots__ = ("fires", "full_since_s", "slow")

    def __init__(self) -> None:
        self.fires: set[Fire] = set()
        self.full_since_s: float | None = None
        self.slow = False


class Loads:
    """See the module.

    Args:
        executors: the names of all there are, looked at anew each time.
        most: hand-overs to one executor that have not ended, at which it is full.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, executors: Collection[str], most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._executors = executors
        self._most = most
        self._worthwhile = max(1, most // _WORTHWHILE)
        self._clock = clock
        self._loads: dict[str, _Load] = {}
        self._waiting = False
        self._away: deque[tuple[float, int]] = deque()  # what was put back: when it comes again, how many
        self._away_count = 0

    def __len__(self) -> int:
        return sum(len(load.fires) for load in self._loads.values())

    def room(self) -> tuple[int, float | None]:
        """How many jobs may be claimed, and when there are none: in how many seconds to ask again, None = `landed`
        will say."""
        answer = self._room()
        if not answer[0]:
            self._waiting = True
            answer = self._room()  # asked again: an end that came in between did not see that we wait
        if answer[0]:
            self._waiting = False
        return answer

    def _room(self) -> tuple[int, float | None]:
        now_s = self._clock()
        room = 0
        patience_s: float | None = None
        for name in list(self._executors):
            load = self._loads.get(name)
            free = self._most if load is None else self._most - len(load.fires)
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

    def board(self, fire: Fire) -> bool:
        """Count a claimed fire; False: its executor is full, and it is to be put back."""
        name = fire.job.executor
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _Load()
        if len(load.fires) >= self._most:
            return False
        load.fires.add(fire)
        return True

    def put_back(self, count: int) -> float:
        """So many are put back; in how many seconds they are to come again."""
        now_s = self._clock()
        while self._away and self._away[0][0] <= now_s:
            self._away_count -= self._away.popleft()[1]
        delay_s = BACK_AFTER_S + self._away_count * PACE_S
        self._away.append((now_s + delay_s, count))
        self._away_count += count
        return delay_s

    def landed(self, fire: Fire) -> bool:
        """It has ended; whether somebody who waits for room is to be woken."""
        load = self._loads.get(fire.job.executor)
        if load is None:
            return False
        load.fires.discard(fire)
        if self._waiting and self._most - len(load.fires) >= self._worthwhile:
            self._waiting = False
            return True
        return False
