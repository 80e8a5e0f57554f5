"""A tick: what becomes of an entry that is due. Its occurrences are stored, and it waits for its next due time.

    claimed entry ─► decide (pure) ─► messages of the occurrences ─► Recur, one step of the store

The dispatcher of any worker claims an entry, as it claims a held task. The answer that this module gives is settled in
one step: either the occurrences are stored and the entry waits again, or neither. A stored occurrence is a held task
that is due (later, if the entry's options say so). So any number of processes may do ticks, and each may be killed at
any moment.

What becomes of missed occurrences (`catch_up`):

- `latest`: only the last of the due occurrences is sent, as Celery's beat does after a downtime.
- `skip`: only the last one is sent, and only if it is not later than `beat_grace`.
- `all`: the last `catch_up_limit` of them are sent. A tick sends a few; the next tick, which is due at once, goes on.

For a crontab the app's `beat_cron_starting_deadline` counts too, as in Celery: an occurrence later than that is not
sent.

Threads: any thread may call any method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from celery.schedules import crontab

from wheel_sched.dispatcher import Answer, Failed
from wheel_sched.errors import Rejected, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.items import Item
from wheel_sched.store.recurring import MOST_OCCURRENCES, Recur
from wheel_sched_celery.beat.code_entries import CodeEntry, code_entry
from wheel_sched_celery.beat.entry import BeatEntry, decode_entry, item_id_of
from wheel_sched_celery.beat.next_due import ASK_AGAIN_S, ask, due_until, is_plain
from wheel_sched_celery.beat.occurrence import occurrence_id, occurrence_items
from wheel_sched_celery.beat.schedules import schedule_of
from wheel_sched_celery.wheel import Wheel

logger = logger_of("wheel_sched.celery")

ATTEMPTS: Final = 5  # to make the messages; then the entry is held
ATTEMPTS_ELSEWHERE: Final = 30  # to find a process whose code has the entry
FIRST_DELAY_MS: Final = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class BeatStats:
    """What the ticks of a `Ticker` did. A dispatcher that starts again after an error has a new one.

    Args:
        sent: occurrences that were sent.
        missed: occurrences that were missed and not sent.
        failed: ticks whose message could not be made.
        held: entries that were held, because making their message failed again and again.
    """

    sent: int = 0
    missed: int = 0
    failed: int = 0
    held: int = 0


class Policy(NamedTuple):
    """What becomes of missed occurrences.

    Args:
        catch_up: "skip", "latest" or "all".
        limit: how many "all" sends at most.
        grace_ms: an occurrence that is later than this is not sent; None: no occurrence is too late.
    """

    catch_up: str
    limit: int
    grace_ms: int | None


class Decision(NamedTuple):
    """What a tick does.

    Args:
        dues_ms: the due times of the occurrences to send.
        missed: how many occurrences are not sent, see `BeatEntry`.
        next_ms: the next due time of the entry.
    """

    dues_ms: tuple[int, ...]
    missed: int
    next_ms: int


def decide(value: Any, due_ms: int, now_ms: int, policy: Policy) -> Decision:
    """Decide which occurrences of a plain schedule are sent, for an entry that was due at `due_ms`.

    Raises:
        Rejected: the schedule has no later time.
    """
    limit = policy.limit if policy.catch_up == "all" else 1
    due = due_until(value, due_ms, now_ms, limit)
    dues_ms, missed = due.dues_ms, due.dropped
    if policy.grace_ms is not None:
        in_time = tuple(each_ms for each_ms in dues_ms if now_ms - each_ms <= policy.grace_ms)
        missed += len(dues_ms) - len(in_time)
        dues_ms = in_time
    return Decision(dues_ms, missed, due.next_ms)


class Ticker:
    """Does the ticks of the entries that a dispatcher has claimed.

    Args:
        wheel: the integration of the app.
        shards: the number of shards of the store.

    Attributes:
        stats: counts what the ticks did.
    """

    def __init__(self, wheel: Wheel, shards: int) -> None:
        self._wheel = wheel
        self._shards = shards
        self.stats = BeatStats()

    def tick(self, item: Claimed, now_ms: int) -> Answer:
        """The answer for a claimed entry; `now_ms` is the store's time. Raises nothing."""
        try:
            entry = decode_entry(item.body)
        except Rejected as error:
            return Failed(str(error), transient=False)
        if entry.paused or entry.removed or entry.due_ms is None:
            return self._waits(item, replace(entry, due_ms=None))
        if entry.due_ms > now_ms:  # somebody changed it while another process had it
            return self._waits(item, entry)
        try:
            return self._sent(item, entry, now_ms)
        except StoreError as error:
            return Failed(f"the store is away: {error}")
        except Exception as error:  # the app's code: a class of tasks or schedules, a signal, a serializer
            return self._failed(item, entry, now_ms, error)

    def _sent(self, item: Claimed, entry: BeatEntry, now_ms: int) -> Answer:
        code = self._code(entry)
        value = schedule_of(entry.schedule, self._wheel.app) if code is None else code.schedule
        if is_plain(value):
            decision = decide(value, entry.due_ms or 0, now_ms, self._policy(entry, value))
        else:
            decision = self._asked(value, entry, now_ms)
        items, dues_ms, next_ms = self._items(entry, decision, None if code is None else code.arguments)
        last_ms = max(dues_ms, default=entry.last_ms)
        if dues_ms and not is_plain(value):
            last_ms = now_ms  # as in Celery: the next question is about the time since this run
        new = replace(
            entry,
            due_ms=next_ms,
            last_ms=last_ms,
            runs=entry.runs + len(dues_ms),
            missed=entry.missed + decision.missed,
            caught_up=entry.caught_up + sum(due_ms < decision.dues_ms[-1] for due_ms in dues_ms),
            failures=0,
            problem="",
        )
        answer = self._waits(item, new, items)
        answer.check(self._shards)
        self._note(entry, decision, dues_ms)
        return answer

    def _asked(self, value: Any, entry: BeatEntry, now_ms: int) -> Decision:
        """Ask a schedule of the app's own class whether it is due, and when to ask again."""
        last_ms = entry.added_ms if entry.last_ms is None else entry.last_ms
        due, again_ms = ask(value, last_ms, lambda: _EPOCH + timedelta(milliseconds=now_ms))
        longest_s = self._wheel.app.conf.beat_max_loop_interval or ASK_AGAIN_S
        next_ms = now_ms + min(again_ms, round(longest_s * 1000))
        return Decision((entry.due_ms or now_ms,) if due else (), 0, next_ms)

    def _items(
        self,
        entry: BeatEntry,
        decision: Decision,
        arguments: tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]] | None,
    ) -> tuple[list[Item], list[int], int]:
        """The items of the first occurrences, their due times, and when the entry is due next.

        One step stores at most `MOST_OCCURRENCES` items. If more are due, the entry is due again at once for the rest.
        """
        place = item_id_of(entry.name), self._shards
        items: list[Item] = []
        dues_ms: list[int] = []
        for due_ms in decision.dues_ms:
            task_id = occurrence_id(self._wheel.settings.namespace, entry.name, due_ms, *place)
            more = occurrence_items(self._wheel, entry, due_ms, task_id, place=place, arguments=arguments)
            if dues_ms and len(items) + len(more) > MOST_OCCURRENCES:
                return items, dues_ms, due_ms
            items += more
            dues_ms.append(due_ms)
        return items, dues_ms, decision.next_ms

    def _code(self, entry: BeatEntry) -> CodeEntry | None:
        """This process's definition of an entry that the store cannot hold, so that it is `in_code`; None for others.

        Raises:
            OnlyInOtherCode: the code of this process does not have the entry, or has another definition of it.
        """
        if not entry.in_code:
            return None
        code = code_entry(self._wheel, entry.name)
        if code is None or code.entry.fingerprint != entry.fingerprint:
            raise OnlyInOtherCode("the code of this process does not have the entry, or has another form of it")
        return code

    def _policy(self, entry: BeatEntry, value: Any) -> Policy:
        settings, conf = self._wheel.settings, self._wheel.app.conf
        catch_up = entry.catch_up or settings.beat_catch_up
        grace_ms = settings.beat_grace if catch_up == "skip" else None
        deadline_s = conf.get("beat_cron_starting_deadline")
        if isinstance(value, crontab) and deadline_s is not None:
            deadline_ms = round(deadline_s * 1000)
            grace_ms = deadline_ms if grace_ms is None else min(grace_ms, deadline_ms)
        return Policy(catch_up, entry.catch_up_limit or settings.beat_catch_up_limit, grace_ms)

    def _waits(self, item: Claimed, entry: BeatEntry, occurrences: Sequence[Item] = ()) -> Recur:
        """The answer with which an entry waits for its due time, or is held if it has none."""
        made = entry.item()
        return Recur(*(item.id, made.due_ms, made.body, made.topic, made.refs, item.route, item.version, occurrences))

    def _failed(self, item: Claimed, entry: BeatEntry, now_ms: int, error: Exception) -> Answer:
        """Leave the entry for another process, or hold it after too many failures."""
        here = not isinstance(error, OnlyInOtherCode)
        failures = entry.failures + 1
        over = failures >= (ATTEMPTS if here else ATTEMPTS_ELSEWHERE)
        problem = str(error) if isinstance(error, Rejected) else repr(error)
        problem = problem.encode("utf-8", "backslashreplace").decode()[:400]
        self.stats.failed += 1
        if over:
            self.stats.held += 1
            logger.error(
                "celery.beat_held: entry '%.200s' is held after %d failures; its last problem: %.400s; "
                "`resume` lets it run again",
                *(entry.name, failures, problem),
            )
            return self._waits(item, replace(entry, due_ms=None, failures=failures, problem=problem))
        logger.warning("celery.beat_failed: entry '%.200s', left for another process: %.400s", entry.name, problem)
        delay_ms = FIRST_DELAY_MS * 2**entry.failures if here else FIRST_DELAY_MS
        body = replace(entry, failures=failures, problem=problem).item()
        return Recur(*(item.id, now_ms + delay_ms, body.body, body.topic, body.refs, item.route, item.version, ()))

    def _note(self, entry: BeatEntry, decision: Decision, dues_ms: Sequence[int]) -> None:
        self.stats.sent += len(dues_ms)
        self.stats.missed += decision.missed
        if decision.missed:
            logger.warning(
                "celery.beat_missed: entry '%.200s': %d occurrences were missed and are not sent; %d are sent now",
                *(entry.name, decision.missed, len(dues_ms)),
            )
        for due_ms in dues_ms:
            logger.info("celery.beat_due: entry '%.200s' (%.200s), due at %d ms", entry.name, entry.task, due_ms)


class OnlyInOtherCode(Rejected):
    """The code of this process does not have an entry that is only in code, or has another definition of it."""
