"""The dispatcher's owner thread: wheel, claims, answers and settlements; see the package's docstring.

One owner thread holds all state and performs all store calls but the listener's blocking read, so there is no lock
around any of it; other threads (listener, workers, callers of `stop`) put a note into the inbox and wake it. The
wheel runs on the store's time, seen from here (`server_time`).

Invariant: for every shard there is an alarm no later than the earliest due and the earliest lease deadline
known here, and whoever inserts something earlier raises the shard's marker; so a sleeping dispatcher is always armed
for the right moment. The sweep (60 s) covers markers that were lost with a server's memory.

At most `workers` batches are between the beginning of their publishing and the answer to their settling: so many can
be doubled when this process dies. While an instant publisher is at one, the server already claims the next, which
waits here until the one before is settled; that one is late by its lease if this process dies, and not doubled. One
that goes in order (see `Publisher`) has the next in hand when more is due than a claim brings.

Source: Kafka's SystemTimer and its reaper, with a durable purgatory behind it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.dispatcher.alarms import Alarms, ExtendLease
from wheel_sched.dispatcher.backoff import Backoff
from wheel_sched.dispatcher.batch import Batch, Failed, Publisher
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.exchange import Asked, Question, ask
from wheel_sched.dispatcher.listener import Listeners
from wheel_sched.dispatcher.pulse import Pulse
from wheel_sched.dispatcher.push import PushTarget
from wheel_sched.dispatcher.server_time import ServerTime
from wheel_sched.dispatcher.statistics import DispatcherStats
from wheel_sched.dispatcher.waiting import Waiting
from wheel_sched.dispatcher.workers import Workers
from wheel_sched.errors import StaleEpoch, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import Joined, Purgatory
from wheel_sched.store.delay_store import DelayStore
from wheel_sched.store.items import Claim, Claimed, Mark, Outcome, Pushed, Settled, Settlement, Swept, Window
from wheel_sched.store.operations import Call, ClaimDue, Extend, Look, ReportJump, Settle, Sweep

logger = logger_of("wheel_sched.dispatcher")

_OWNER = "wheel-sched-dispatcher"


class Dispatcher:
    """Releases what is due in a store, on time, to a publisher.

    Args:
        store: an open delay store.
        publisher: where items go; also asked about items the server refused to push.
        push: when given, the server pushes due items itself (exactly once); the publisher only sees the refused.
        config: see `DispatcherConfig`. Defaults to its defaults.
        clock: local monotonic time and waiting. Defaults to the machine's.
        on_settled: called in the owner thread with (claimed, answer, now_ms) after each settled item. Defaults to
            nothing; keep it quick.

    Thread rules: `start`, `stop` and `stats` from any thread; a second `start` or `stop` does nothing.
    """

    def __init__(
        self,
        store: DelayStore,
        publisher: Publisher,
        *,
        push: PushTarget | None = None,
        config: DispatcherConfig | None = None,
        clock: Clock | None = None,
        on_settled: Callable[[Claimed, Settlement, int], None] | None = None,
    ) -> None:
        self.store = store
        self.publisher = publisher
        self.push = push
        self.config = config or DispatcherConfig()
        self.stats = DispatcherStats()
        self._clock = clock or SystemClock()
        self._on_settled = on_settled
        self._time = ServerTime()
        self._alarms = Alarms(self.config.sweep_ms)
        self._epochs: dict[int, int] = {}
        self._ripe: dict[int, None] = {}  # the shard that waited longest first, so that none starves
        self._unread: set[int] = set(range(store.shards))
        self._to_sweep: set[int] = set()
        self._swept_ms: dict[int, int] = {}
        self._marks: dict[int, bytes] = {}
        self._ahead: Asked | None = None  # the claim of the batch after the one that is being published
        self._ready: deque[Batch] = deque()  # claimed, and nobody has begun to publish them
        self._answered: deque[Batch] = deque()
        in_order = self._in_order = bool(getattr(publisher, "in_order", False))
        self._waiting = Waiting(self._clock, self.config.publish_timeout_ms, self._answered.append, in_order=in_order)
        self._inbox: deque[Callable[[], None]] = deque()
        self._backoff = Backoff(self.config, self.stats)
        self._wakeup = threading.Condition()
        self._pulse = Pulse(self._clock)
        self._workers = Workers(publisher, self.config, self._clock, self._pulse, self._returned)
        self._owner = threading.Thread(target=self._own, name=_OWNER, daemon=True)
        self._listeners = Listeners(store.backend, self._mark_heard, self._reconnected, self.config.sweep_ms + 5_000)
        self._state = "new"
        self._state_lock = threading.Lock()
        self._stop_by_ns: int | None = None
        self._draining = self._drained = False
        self._store_failures = 0
        self._quiet_until_us = 0
        self._asked_us = 0

    def __repr__(self) -> str:
        stats, state = self.stats, f"{self._state} shards={self.store.shards}"
        numbers = f"in_flight={stats.in_flight} published={stats.published} armed={len(self._alarms)}"
        return f"<Dispatcher {state} {numbers}>"

    def __enter__(self) -> Dispatcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ailing(self) -> list[str]:
        """What of it a restart would mend, in words: a thread that has ended, or an owner's turn of over a minute."""
        if not self._owner.is_alive():
            return ["its thread has ended"]
        threads = (thread for thread in (*self._workers.threads, *self._listeners.threads) if not thread.is_alive())
        ended = [f"{thread.name} has ended" for thread in threads]
        return ended * (self._state == "running") + self._pulse.stuck(_OWNER)  # in a drain they end

    @property
    def ready(self) -> bool:
        """It runs with all its threads, has read every shard's window, the store answers, and the publisher returns."""
        runs = self._owner.is_alive() and self._state == "running"
        away = self._unread or self._store_failures or self._pulse.waits_for_store() or self._listeners.down
        return runs and not away and not self._pulse.stuck()

    @property
    def purgatory(self) -> Purgatory[Hashable]:
        """Where claimed batches wait for their answers, and a drain for its end; to look at."""
        return self._waiting.purgatory

    def start(self) -> None:
        """Start the owner and the workers."""
        with self._state_lock:
            if self._state != "new":
                return
            self._state = "running"
            self._workers.start()
            self._owner.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Drain: claim no more, wait up to `timeout_s` for what is being published, settle it, end.

        What is unanswered then is in doubt and released, so that another dispatcher takes it at once.
        """
        with self._state_lock:
            if self._state == "new":
                self._state = "stopped"
            if self._state == "stopped":
                return
            self._state = "stopping"
            self._stop_by_ns = self._clock.monotonic_ns() + int(timeout_s * 1e9)
        self._listeners.stop()
        self._note(lambda: None)
        if threading.current_thread() not in (self._owner, *self._workers.threads):
            self._owner.join(timeout_s + 5)
        with self._state_lock:
            self._state = "stopped"

    def _note(self, note: Callable[[], None]) -> None:
        """Have the owner run `note`; from any thread."""
        with self._wakeup:
            self._inbox.append(note)
            self._wakeup.notify()

    # -- the owner

    def _own(self) -> None:
        while self._turn():
            pass
        self._workers.stop()
        self._listeners.stop()

    def _turn(self) -> bool:
        """One turn; False after the last. After one that failed as nobody foresaw the next comes with a delay."""
        try:
            if self._finished():
                return False
            self._step()
        except BaseException as error:
            if self._stop_by_ns is not None:
                logger.exception("dispatcher.stop_failed: what is out comes back when its lease ends")
                return False
            self._store_away(error)
            self._answered += self._alarms.after_failure({*self._ready, *self._answered, *self._waiting.out})
            self.stats.in_flight = sum(len(batch.items) for batch in self._alarms.batches)
        return True

    def _finished(self) -> bool:
        if self._stop_by_ns is not None and not self._draining:
            self._draining = True
            if self._ahead is not None:
                self._hear([self._ahead])
                self._ahead = None
            left_ns = self._stop_by_ns - self._clock.monotonic_ns()
            self._waiting.drain(self._alarms.batches, max(0, left_ns // 1_000_000), self._drain_over)
        return self._drained

    def _drain_over(self, batches: Joined[Batch]) -> None:
        """All are settled, or the time is up: what is unanswered then is in doubt, and released."""
        for batch in batches.missing:
            if batch in self._ready:
                batch.answers = [Failed("its dispatcher stopped before it was published")] * len(batch.items)
                self._answered.append(batch)
            else:
                self._waiting.returned(batch)
        self._ready.clear()
        if self._answered:
            self._converse()
        self._drained = True

    def _step(self) -> None:
        self._pulse.beat(_OWNER)
        while self._inbox:
            self._inbox.popleft()()
        self._waiting.timer.run_due()
        if self._drained:
            return
        if self._time.known:
            for alarm in self._alarms.due(self._now_ms()):
                if isinstance(alarm, ExtendLease):
                    self._keep(alarm.batch)
                    continue
                self.stats.wake_ups += 1
                if alarm.sweep:
                    self._to_sweep.add(alarm.shard)
                else:
                    self._ripe[alarm.shard] = None
        talked = self._converse()
        if not (self._give_out() or talked):
            self._sleep()

    def _local_us(self) -> int:
        return self._clock.monotonic_ns() // 1000

    def _now_ms(self) -> int:
        return self._time.now_us(self._local_us()) // 1000

    def _sleep(self) -> None:
        with self._wakeup:
            if self._inbox or (self._stop_by_ns is not None and not self._draining):  # stopped in this turn
                return
            local_us = self._local_us()
            until_us = [self._quiet_until_us] if self._quiet_until_us > local_us else []
            if not until_us and self._time.known and (expiry := self._alarms.next_ms()) is not None:
                until_us.append(local_us + expiry * 1000 - self._time.now_us(local_us))
            if (timeout_ms := self._waiting.timer.next_ms()) is not None:
                until_us.append(timeout_ms * 1000)
            self._pulse.rest(_OWNER)
            self._clock.wait(self._wakeup, max(0, min(until_us) - local_us) / 1000 if until_us else None)

    def _converse(self) -> bool:
        """One round trip with all that is to be said; False when there was nothing."""
        if self._local_us() < self._quiet_until_us and self._stop_by_ns is None:
            return False
        settling: list[Question] = []
        while self._answered:
            batch = self._answered.popleft()
            if batch.settling is None:
                answers = list(batch.answers)  # a publisher past its timeout may still be writing
                settlements = self._backoff.settlements(batch.items, answers, self._now_ms())
                batch.settling = Settle(batch.claim.number, settlements, self.config.dead_cap)
            settling.append((Call(batch.claim.shard, batch.settling), batch))
        ahead, self._ahead = self._ahead, None
        free = self.config.workers - self._alarms.out() + len(settling) - (ahead is not None)
        claims = [(call, None) for call in self._claims(free)] if self._stop_by_ns is None else []
        # two messages, for each is a turn of its own at the server, and others wait meanwhile
        asked = [] if ahead is None else [ahead]
        with self._pulse.waiting_for_store():
            asked += [ask(self.store, questions, self._local_us()) for questions in (settling, claims) if questions]
            self._hear(asked)
        return bool(asked)

    def _give_out(self) -> bool:
        """Have the ready batches published, as many at once as there are workers; False when there was none."""
        ready = len(self._ready)
        while self._ready and (self._in_order or self._alarms.out() - len(self._ready) < self.config.workers):
            batch = self._ready.popleft()
            if self._workers.at_once and self._ahead is None and self._stop_by_ns is None:
                for call in self._ripe_claims(1):
                    self._ahead = ask(self.store, [(call, None)], self._local_us(), ahead=True)
            self._waiting.watch(batch)
            self._workers.give(batch)
        return len(self._ready) < ready

    def _claims(self, free: int) -> list[Call[Any]]:
        config = self.config
        calls: list[Call[Any]] = [Call(shard, Look(0, 0)) for shard in sorted(self._unread)]
        sweep = partial(Sweep, config.dead_cap, config.dead_age_ms, config.lapse_cap)
        calls += [Call(shard, sweep()) for shard in sorted(self._to_sweep - self._unread)]
        # one batch per worker: more could be doubled if this process dies, and is no faster
        return calls + self._ripe_claims(self.store.shards if self.push or self._in_order else max(0, free))

    def _ripe_claims(self, most: int) -> list[Call[Any]]:
        """Claims of the shards that wait longest; each is ripe again when an answer or a marker says so."""
        config = self.config
        calls: list[Call[Any]] = []
        room = config.max_in_flight - self.stats.in_flight
        ripe = [shard for shard in self._ripe if shard not in self._unread and self._waiting.admits(shard)]
        for shard in ripe[:most]:
            limit = min(config.batch if self.push is None else config.push_batch, room)
            if limit <= 0:
                break
            room -= limit
            del self._ripe[shard]
            epoch = self._epochs.get(shard)
            if self.push is None:
                calls.append(Call(shard, ClaimDue(limit, config.lease_ms, None, epoch, config.lapse_cap)))
            else:
                calls.append(Call(shard, self.push.claim(limit, config.lease_ms, epoch, config.lapse_cap)))
        return calls

    def _hear(self, asked: Sequence[Asked]) -> None:
        failures = [failure for each in asked if (failure := self._heard(each)) is not None]
        if failures:
            self._store_away(failures[-1])
        elif asked:
            self._store_failures = 0

    def _heard(self, asked: Asked) -> Exception | None:
        """Wait for the replies and act on them; the last one that is a failure of the store."""
        failed, replies = None, asked.replies()
        self._asked_us, after_us = asked.at_us, self._local_us()
        for reply in replies:
            answer, shard = reply.answer, reply.call.shard
            if isinstance(answer, StaleEpoch):
                self._unread.add(shard)
                continue
            if isinstance(answer, Exception):
                failed = answer
                if reply.batch is not None:
                    self._answered.append(reply.batch)  # again, under the same token
                continue
            if jump_us := self._time.observe(answer.now_us, asked.at_us, after_us):
                self._jumped(jump_us)
            match answer:
                case Window():
                    self._read(answer)
                case Claim():
                    self._claimed(answer, asked.ahead)
                case Pushed():
                    self._pushed(answer)
                case Swept():
                    self.stats.sweeps += 1
                    self.stats.recovered += answer.recovered
                    self._to_sweep.discard(shard)
                    self._swept_ms[shard] = answer.now_us // 1000
                    self._arm(shard, answer.due_head_ms, answer.fly_head_ms)
                case Settled():
                    if reply.batch is not None:
                        self._settled(reply.batch, answer)
                    self._arm(shard, answer.due_head_ms, answer.fly_head_ms)
        return failed

    def _store_away(self, error: BaseException) -> None:
        self.stats.store_errors += 1
        self._store_failures += 1
        if not isinstance(error, StoreError):
            logger.error("dispatcher.turn_failed: it goes on", exc_info=error)
        elif self._store_failures == 1:
            logger.warning("dispatcher.store_away: %s", error)
        # the window is read again at every reconnect
        self._unread.update(range(self.store.shards))
        delay_ms = min(50 * 2 ** min(self._store_failures, 10), self.config.backoff_max_ms, 5_000)
        self._quiet_until_us = self._local_us() + delay_ms * 1000

    def _jumped(self, step_us: int) -> None:
        self.stats.clock_jumps += 1
        logger.warning("dispatcher.clock_jumped: the store's clock moved by %.1f s", step_us / 1e6)
        step_ms = step_us // 1000
        # what fails here is told by the next dispatcher that sees the step; the scripts see those back by themselves
        self.store.execute([Call(shard, ReportJump(epoch, step_ms)) for shard, epoch in self._epochs.items()])
        self._swept_ms.clear()
        self._alarms.restart(self._now_ms(), self._now_ms() + self.config.lease_ms // 3)
        self._unread.update(range(self.store.shards))

    # -- what the store said

    def _read(self, window: Window) -> None:
        shard = window.shard
        self._unread.discard(shard)
        self._epochs[shard] = window.epoch
        self._arm(shard, window.due_head_ms, window.fly_head_ms)
        self._marks[shard] = window.mark
        if len(self._marks) == self.store.shards and not self._listeners:
            self._listeners.start(self._marks)

    def _mark_heard(self, shard: int, mark: Mark) -> None:
        def arm() -> None:
            self.stats.marks += 1
            if mark.due_ms is None:
                self._unread.add(shard)
            else:
                self._arm(shard, mark.due_ms, None, keep=True)

        self._note(arm)

    def _reconnected(self, shards: Sequence[int]) -> None:
        def read_anew() -> None:
            self.stats.reconnects += 1
            self._unread.update(shards)

        self._note(read_anew)

    def _claimed(self, claim: Claim, ahead: bool) -> None:
        self._epochs[claim.shard] = claim.epoch
        self.stats.claims += 1
        self._waiting.claimed(claim, self.config.batch)
        if claim.items:
            batch = Batch(claim, claim.items)
            self._hold(batch)
            self._ready.append(batch)
        else:
            self.stats.empty_claims += 1
        self._arm(claim.shard, claim.due_head_ms, claim.fly_head_ms, keep=ahead)

    def _pushed(self, pushed: Pushed) -> None:
        self._epochs[pushed.shard] = pushed.epoch
        self.stats.claims += 1
        if pushed.dues_ms:
            self.stats.published += len(pushed.dues_ms)
            self.stats.late(pushed.now_us // 1000, pushed.dues_ms)
        elif not pushed.refused:
            self.stats.empty_claims += 1
        if pushed.refused:
            batch = Batch(pushed, [refused.item for refused in pushed.refused])
            batch.answers = [self._workers.refuse(refused) for refused in pushed.refused]
            self._hold(batch)
            self._waiting.watch(batch)
        self._arm(pushed.shard, pushed.due_head_ms, pushed.fly_head_ms)

    def _arm(self, shard: int, due_head_ms: int | None, fly_head_ms: int | None, *, keep: bool = False) -> None:
        """Have the wheel wake this shard for its next due or lease end; `keep` an earlier moment that stands."""
        now_ms = self._now_ms()
        heads = [head for head in (due_head_ms, fly_head_ms) if head is not None]
        if not keep:
            self._ripe.pop(shard, None)  # an answer before this one, of the same turn, may have said so
        if not heads:
            if not keep:
                self._alarms.forget_shard(shard)
        elif min(heads) <= now_ms:
            self._ripe[shard] = None
        else:
            self._alarms.look_at(shard, min(heads), now_ms, unless_earlier=keep)
            if now_ms - self._swept_ms.setdefault(shard, now_ms) >= self.config.sweep_ms:
                self._to_sweep.add(shard)  # busy shards are never quiet long enough for a sweep of their own

    # -- batches

    def _hold(self, batch: Batch) -> None:
        batch.lease_until_ns = self._asked_us * 1000 + self.config.lease_ms * 1_000_000
        batch.told = self._told
        self.stats.in_flight += len(batch.items)
        self._alarms.extend_lease(batch, self._now_ms() + self.config.lease_ms // 3)

    def _returned(self, batch: Batch) -> None:
        self._note(lambda: self._waiting.returned(batch))

    def _told(self, batch: Batch) -> None:
        self._note(lambda: self._waiting.told(batch))

    def _keep(self, batch: Batch) -> None:
        """A batch is still out: extend its lease."""
        if not self._alarms.is_out(batch):
            return
        now_ms = self._now_ms()
        ids = [item.id for item in batch.items]
        asked_ns = self._clock.monotonic_ns()
        (answer,) = self.store.execute([Call(batch.claim.shard, Extend(batch.claim.number, ids, self.config.lease_ms))])
        if isinstance(answer, Exception):
            logger.warning("dispatcher.lease_not_extended: %s", answer)
        elif Outcome.STALE not in answer.outcomes:
            batch.lease_until_ns = asked_ns + self.config.lease_ms * 1_000_000
        self._alarms.extend_lease(batch, now_ms + self.config.lease_ms // 3)

    def _settled(self, batch: Batch, settled: Settled) -> None:
        self._alarms.done(batch)
        self._waiting.settled(batch)
        settlements = batch.settling.settlements if batch.settling is not None else ()
        self.stats.settled(batch.items, settlements, settled)
        if self._on_settled is None:
            return
        for item, settlement, outcome in zip(batch.items, settlements, settled.outcomes, strict=True):
            if outcome is not Outcome.STALE:
                try:
                    self._on_settled(item, settlement, settled.now_us // 1000)
                except Exception:
                    logger.exception("dispatcher.on_settled_failed")
