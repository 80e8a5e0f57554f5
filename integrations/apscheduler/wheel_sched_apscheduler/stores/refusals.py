"""Refusals: jobs that this process cannot run, and gives back to the store for other processes.

In a fleet with several releases a process may lack the function, the executor or the secret of a job. It gives the job
back, and the job is due again a moment later. For a while this process claims later than the others do (`deferral_ms`),
so that it does not take the job away from a process that can run it.

A *round* ends when a process claims a job that it has already refused: the other processes had their chance. The job
waits twice as long after each round. Refs of the job hold the number of rounds, the first time, the processes that
refused the job in the present round, and the last reason:

    refused, refused:<rounds>:<since, ms>:<marks of processes>:<host:pid> <reason>

A job that was refused for many rounds and for as long as a deployment takes is quarantined. A job that no process of
any configuration can read is quarantined at once. The next run of the job, or a change of the job, removes these refs.

Threads: any.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from wheel_sched.escaping import escaped
from wheel_sched.store import Claimed, Held, Next, Settlement
from wheel_sched_apscheduler.entries import owner_name
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.layout import QUARANTINE, job_id_of

REFUSED = "refused"
BACK_AFTER_MS = 100  # until a process that has not refused the job may claim it; doubled after each round
BACK_AT_MOST_MS = 30_000
DEFER_MS = 200  # so much later than the others claims a process that has refused a job
DEFER_FOR_S = 60.0  # since its last refusal
DEFER_ROUNDS = 3  # after these it defers only for that job: no process seems able to run it, and other jobs wait too
_DUES_AT_MOST = 100
_REFUSERS_AT_MOST = 10  # in the refs; so many end a round as well, for some of them may be gone
_REASON_AT_MOST = 90  # characters of the reason in the refs
_LAST_AT_MOST = 120  # of the reason and the process together
_LOGGED_AT_MOST = 1000  # of the reason in the log and in the quarantine
_ROUNDS_AT_MOST = 1_000_000
_SINCE_AT_MOST_MS = 1 << 47  # the year 6429


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often a waiting job was given back.

    Args:
        rounds: how many; the first refusal begins the first.
        since_ms: time of the first refusal, by the store's clock.
        refusers: marks of the processes that refused the job in this round.
        last: process and reason of the last refusal.
    """

    rounds: int
    since_ms: int
    refusers: tuple[str, ...]
    last: str

    def ref(self) -> str:
        return f"{REFUSED}:{self.rounds}:{self.since_ms}:{','.join(self.refusers)}:{self.last}"

    def again(self, refuser: str, last: str) -> Refusal:
        """After one more refusal. It begins a new round if `refuser` has refused the job in this one."""
        if refuser in self.refusers or len(self.refusers) >= _REFUSERS_AT_MOST:
            return Refusal(self.rounds + 1, self.since_ms, (refuser,), last)
        return Refusal(self.rounds, self.since_ms, (*self.refusers, refuser), last)


def refusal_of(refs: Sequence[str]) -> Refusal | None:
    """The refusal in a job's refs; None when the job was not given back.

    Anybody who can write to the store can write such a ref, so its numbers are kept within bounds.
    """
    for ref in refs:
        if ref.startswith(f"{REFUSED}:"):
            try:
                _, number, since, refusers, last = ref.split(":", 4)
                rounds, since_ms = min(max(int(number), 1), _ROUNDS_AT_MOST), min(max(int(since), 0), _SINCE_AT_MOST_MS)
                return Refusal(rounds, since_ms, tuple(refusers.split(",")), last)
            except ValueError:
                continue
    return None


def without_refusal(refs: Sequence[str]) -> tuple[str, ...]:
    """The refs without those of a refusal."""
    if REFUSED not in refs:
        return tuple(refs)
    return tuple(ref for ref in refs if ref != REFUSED and not ref.startswith(f"{REFUSED}:"))


class RefusalPolicy:
    """Decides what becomes of a job that this process cannot run. See the module.

    Args:
        connection: gives the store's time and the logger.
        rounds: refusals in so many rounds quarantine a job,
        after_ms: if the first of them is so long ago.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(
        self, connection: StoreConnection, rounds: int, after_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self.after_ms = after_ms
        self.clock = clock
        self.process_mark = uuid4().hex[:6]  # names this process in the refs of a job
        self._rounds = rounds
        self._defer_until_s = 0.0
        self._dues: deque[int] = deque(maxlen=_DUES_AT_MOST)  # of the jobs that were given back

    def deferral_ms(self, heads: Iterable[int | None]) -> int:
        """How much later than the others to claim, when these dues are the next: one may be of a job refused here."""
        defers = self.clock() < self._defer_until_s or any(head in self._dues for head in heads)
        return DEFER_MS if defers else 0

    def settlement(self, item: Claimed, reason: str, *, error: Any = None, unreadable: bool = False) -> Settlement:
        """Give an item back for other processes, or quarantine it; and log which.

        Args:
            item: as it was claimed.
            reason: why it cannot be run here.
            error: to log with its traceback. Defaults to None.
            unreadable: whether no process can run it. Defaults to False.
        """
        logger = self._connection.logger
        reason = escaped(reason[:_LOGGED_AT_MOST])  # it quotes stored data
        job_id = job_id_of(item.id)
        now_ms = self._connection.now_ms()
        before = refusal_of(item.refs)
        refusal = self._next_refusal(before, reason, now_ms)
        rounds, waited_ms = refusal.rounds, now_ms - refusal.since_ms
        new_round = before is None or rounds > before.rounds
        if unreadable or (new_round and rounds >= self._rounds and waited_ms >= self.after_ms):
            logger.error("Job %r cannot be run and is quarantined: %s", job_id, reason, exc_info=error)
            how_often = "" if unreadable or rounds == 1 else f" (refused {rounds} times in {waited_ms // 1000} s)"
            return Held(item.id, f"{QUARANTINE}: {reason}{how_often}")
        if rounds <= DEFER_ROUNDS:
            self._defer_until_s = self.clock() + DEFER_FOR_S
        delay_ms = min(BACK_AFTER_MS << min(rounds - 1, 20), BACK_AT_MOST_MS) if new_round else BACK_AFTER_MS
        logger.warning(
            "Job %r cannot be run here and is given back for others, for the %d. time: %s", job_id, rounds, reason
        )
        refs = (*without_refusal(item.refs), REFUSED, refusal.ref())
        self._dues.append(now_ms + delay_ms)
        return Next(item.id, now_ms + delay_ms, item.body, item.topic, refs, item.route, version=item.version)

    def _next_refusal(self, before: Refusal | None, reason: str, now_ms: int) -> Refusal:
        printable = "".join(letter if letter.isprintable() else " " for letter in reason)[:_REASON_AT_MOST]
        last = f"{owner_name()} {printable}"[:_LAST_AT_MOST]
        if before is None:
            return Refusal(1, now_ms, (self.process_mark,), last)
        return before.again(self.process_mark, last)
