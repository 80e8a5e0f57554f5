"""The dispatcher's owner thread: it claims due items, gives them to the publisher, and settles the answers.

    step:  run posts ─► run alarms ─► round trip (settle, look, sweep, claim) ─► hand to workers ─► sleep

One owner thread holds all state and makes all store calls except the blocking read of the listeners, so nothing here
needs a lock. Other threads (listeners, workers, callers of `stop`) post a callback and wake the owner. The wheel runs
on the store's time (`server_time`). A claim source says from which shards to claim and how a claim ends
(`claim_source`).

Invariant: every shard has an alarm no later than the earliest due time or lease end known here. A caller that inserts
an earlier item writes the shard's marker. So a sleeping dispatcher always wakes in time. The sweep (60 s) covers
markers that were lost with a server's memory.

At most `workers` batches are between the start of their publishing and the answer to their settling: when this process
dies, at most this many batches are published twice. While a publisher that never waits publishes one batch, the server
already claims the next one. The next batch waits here until the one before is settled; when this process dies, it is
late by its lease, but not published twice. A transactional publisher gets the next batch early when more items are due
than one claim brings.
Source: Kafka's SystemTimer and its reaper, with a durable purgatory behind it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.dispatcher.alarms import Alarms, ExtendLease
from wheel_sched.dispatcher.backoff import Backoff
from wheel_sched.dispatcher.claim_source import ClaimSource, PushTarget, SharedLeases
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.due_shards import DueShards
from wheel_sched.dispatcher.in_flight import InFlightBatches
from wheel_sched.dispatcher.listener import Listeners
from wheel_sched.dispatcher.pending_calls import PendingCalls, Reply, Request, send
from wheel_sched.dispatcher.publisher import Batch, Failed, Publisher
from wheel_sched.dispatcher.server_time import ServerTime
from wheel_sched.dispatcher.statistics import DispatcherStats, report_settled
from wheel_sched.dispatcher.workers import Watchdog, Workers
from wheel_sched.errors import ConfigError, StaleEpoch, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import Joined, Purgatory
from wheel_sched.store import Claim, Claimed, DelayStore, Marker, Outcome, Pushed, Settled, Settlement, Swept, Window
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.settle import Settle
from wheel_sched.store.core.sweep import ReportJump

logger = logger_of("wheel_sched.dispatcher")

_OWNER = "wheel-sched-dispatcher"


class Dispatcher:
    """Releases the due items of a store, on time, to a publisher.

    Args:
        store: an open delay store.
        publisher: publishes the items. It also decides about items that the server refused to push.
        push: when given, the server pushes due items itself (exactly once), and the publisher only gets those that the
            server refused. Not together with `claims`. Defaults to None.
        claims: the claim source of this dispatcher. Defaults to `SharedLeases`.
        config: see `DispatcherConfig`. Defaults to its defaults.
        clock: local monotonic time and waiting. Defaults to the machine's.
        on_settled: called in the owner thread with (claimed, settlement, now_ms) after each settled item. Defaults to
            nothing; keep it quick.

    Raises:
        ConfigError: `push` and `claims` are given together.

    Thread rules: `start`, `stop` and `stats` from any thread; a second `start` or `stop` does nothing.
    """

    def __init__(
        self,
        store: DelayStore,
        publisher: Publisher,
        *,
        push: PushTarget | None = None,
        claims: ClaimSource | None = None,
        config: DispatcherConfig | None = None,
        clock: Clock | None = None,
        on_settled: Callable[[Claimed, Settlement, int], None] | None = None,
    ) -> None:
        if push is not None and claims is not None:
            raise ConfigError("expected push or claims, got both; nothing was started")
        self.store = store
        self.publisher = publisher
        self.push = push
        self.config = config = config or DispatcherConfig()
        self.stats = DispatcherStats()
        self._claim_source: ClaimSource = claims or SharedLeases(store, config, push)
        self._clock = clock or SystemClock()
        self._on_settled = on_settled
        transactional = self._transactional = publisher.traits.transactional
        # A push claims few items, so that one script call can push them. A push or a transaction gives no batch to
        # our workers.
        self._claim_limit = config.batch if push is None else config.push_batch
        self._claims_all_shards = push is not None or transactional
        self._time = ServerTime()
        self._alarms = Alarms(config.sweep_ms)
        self._shards = DueShards(store.shards, self._claim_source, self._alarms, config.sweep_ms)
        self._marks: dict[int, bytes] = {}
        self._ahead: PendingCalls | None = None  # the claim of the next batch, sent while one is being published
        self._ready: deque[Batch] = deque()  # claimed, not yet given to a publisher
        self._answered: deque[Batch] = deque()
        timeout_ms = None if transactional else config.publish_timeout_ms
        self._in_flight = InFlightBatches(self._clock, timeout_ms, self._answered.append, one_behind=transactional)
        self._posts: deque[Callable[[], None]] = deque()
        self._backoff = Backoff(config, self.stats)
        self._wakeup = threading.Condition()
        self._watchdog = Watchdog(self._clock)
        self._workers = Workers(publisher, config, self._clock, self._watchdog, self._on_returned)
        self._owner = threading.Thread(target=self._own, name=_OWNER, daemon=True)
        self._listeners = Listeners(store.backend, self._on_mark, self._on_reconnect, config.sweep_ms + 5_000)
        self._state = "new"
        self._state_lock = threading.Lock()
        self._stop_by_ns: int | None = None
        self._draining = self._drained = False
        self._store_failures = 0
        self._back_off_until_us = 0
        self._sent_us = 0

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
        """Why a restart would help, in words: a thread has ended, or a step of the owner lasts over a minute."""
        if not self._owner.is_alive():
            return ["its thread has ended"]
        threads = (thread for thread in (*self._workers.threads, *self._listeners.threads) if not thread.is_alive())
        ended = [f"{thread.name} has ended" for thread in threads]
        return ended * (self._state == "running") + self._watchdog.stuck(_OWNER)  # in a drain they end

    @property
    def ready(self) -> bool:
        """Whether all threads run, every shard was read, and store and publisher answer in time."""
        runs = self._owner.is_alive() and self._state == "running"
        away = self._shards.unread or self._store_failures or self._watchdog.store_is_slow() or self._listeners.down
        return runs and not away and not self._watchdog.stuck()

    @property
    def purgatory(self) -> Purgatory[Hashable]:
        """The purgatory in which in-flight batches and a drain wait; for inspection only."""
        return self._in_flight.purgatory

    def start(self) -> None:
        """Start the owner and the workers."""
        with self._state_lock:
            if self._state != "new":
                return
            self._state = "running"
            self._workers.start()
            self._owner.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Drain: claim no more, wait up to `timeout_s` for the batches being published, settle them, end.

        Items without an answer after this time are in doubt and released, so another dispatcher can claim them at once.
        """
        with self._state_lock:
            if self._state == "new":
                self._state = "stopped"
            if self._state == "stopped":
                return
            self._state = "stopping"
            self._stop_by_ns = self._clock.monotonic_ns() + int(timeout_s * 1e9)
        self._listeners.stop()
        self._post(lambda: None)
        if threading.current_thread() not in (self._owner, *self._workers.threads):
            self._owner.join(timeout_s + 5)
        with self._state_lock:
            self._state = "stopped"

    def _post(self, callback: Callable[[], None]) -> None:
        """Have the owner run `callback`; from any thread."""
        with self._wakeup:
            self._posts.append(callback)
            self._wakeup.notify()

    # -- the owner's loop

    def _own(self) -> None:
        while self._try_step():
            pass
        self._workers.stop()
        self._listeners.stop()

    def _try_step(self) -> bool:
        """One step; False after the last step. After a step that failed unexpectedly the owner waits (backoff)."""
        try:
            if self._finished():
                return False
            self._step()
        except BaseException as error:
            if self._stop_by_ns is not None:
                logger.exception("dispatcher.stop_failed: batches in flight come back when their lease ends")
                return False
            self._store_away(error)
            self._answered += self._alarms.after_failure({*self._ready, *self._answered, *self._in_flight.unanswered})
            self.stats.in_flight = sum(len(batch.items) for batch in self._alarms.batches)
        return True

    def _step(self) -> None:
        self._watchdog.beat(_OWNER)
        while self._posts:
            self._posts.popleft()()
        self._in_flight.timer.run_due()
        if self._drained:
            return
        self._run_alarms()
        talked = self._run_round_trip()
        if not (self._hand_to_workers() or talked):
            self._sleep()

    def _run_alarms(self) -> None:
        if not self._time.known:
            return
        for alarm in self._alarms.due(self._now_ms()):
            if isinstance(alarm, ExtendLease):
                self._extend_lease(alarm.batch)
            else:
                self.stats.wake_ups += 1
                self._shards.due(alarm.shard, sweep=alarm.sweep)

    def _run_round_trip(self) -> bool:
        """Settle, look, sweep and claim in one round trip; False when there was nothing to send."""
        if self._local_us() < self._back_off_until_us and self._stop_by_ns is None:
            return False
        settling = self._settle_calls()
        ahead, self._ahead = self._ahead, None
        free = self.config.workers - self._alarms.out() + len(settling) - (ahead is not None)
        failures: list[Exception] = []
        claiming = [] if self._stop_by_ns is not None else self._shard_calls(max(0, free), failures)
        # two messages: between them the server can serve other clients
        pending = [] if ahead is None else [ahead]
        with self._watchdog.round_trip():
            pending += [send(self.store, each, self._local_us()) for each in (settling, claiming) if each]
            self._handle_replies(pending, failures)
        return bool(pending)

    def _hand_to_workers(self) -> bool:
        """Give ready batches to the workers, as many at once as there are workers; False when no batch was ready."""
        ready = len(self._ready)
        while self._ready and (self._transactional or self._alarms.out() - len(self._ready) < self.config.workers):
            batch = self._ready.popleft()
            if self._workers.at_once and self._ahead is None and self._stop_by_ns is None:
                self._claim_ahead()
            self._in_flight.watch(batch)
            self._workers.give(batch)
        return len(self._ready) < ready

    def _sleep(self) -> None:
        with self._wakeup:
            if self._posts or (self._stop_by_ns is not None and not self._draining):  # stopped in this step
                return
            local_us = self._local_us()
            until_us = [self._back_off_until_us] if self._back_off_until_us > local_us else []
            if not until_us and self._time.known and (expiry := self._alarms.next_ms()) is not None:
                until_us.append(local_us + expiry * 1000 - self._time.now_us(local_us))
            if (timeout_ms := self._in_flight.timer.next_ms()) is not None:
                until_us.append(timeout_ms * 1000)
            self._watchdog.rest(_OWNER)
            self._clock.wait(self._wakeup, max(0, min(until_us) - local_us) / 1000 if until_us else None)

    def _local_us(self) -> int:
        return self._clock.monotonic_ns() // 1000

    def _now_ms(self) -> int:
        return self._time.now_us(self._local_us()) // 1000

    # -- stopping

    def _finished(self) -> bool:
        if self._stop_by_ns is not None and not self._draining:
            self._draining = True
            if self._ahead is not None:
                self._handle_replies([self._ahead], [])
                self._ahead = None
            left_ns = self._stop_by_ns - self._clock.monotonic_ns()
            self._in_flight.drain(self._alarms.batches, max(0, left_ns // 1_000_000), self._drain_over)
        return self._drained

    def _drain_over(self, batches: Joined[Batch]) -> None:
        """All batches are settled, or the time is up: items without an answer are in doubt and released."""
        for batch in batches.missing:
            if batch in self._ready:
                batch.answers = [Failed("its dispatcher stopped before it was published")] * len(batch.items)
                self._answered.append(batch)
            else:
                self._in_flight.end(batch)
        self._ready.clear()
        self._run_round_trip()
        self._drained = True

    # -- calls to the store

    def _settle_calls(self) -> list[Request]:
        """The calls that settle answered batches. A batch is forgotten when the claim source cannot settle it."""
        calls: list[Request] = []
        while self._answered:
            batch = self._answered.popleft()
            if batch.settling is None:
                answers = list(batch.answers)  # a publisher past its timeout may still be writing
                batch.settlements = self._backoff.settlements(batch.items, answers, self._now_ms())
                to_settle = self._claim_source.to_settle(batch, batch.settlements)
                if to_settle is None:
                    self._shards.read_anew([batch.claim.shard])
                    self._ended(batch, [Outcome.STALE] * len(batch.items), 0)
                    continue
                batch.settling = Settle(batch.claim.number, to_settle, self.config.dead_cap)
            calls.append((Call(batch.claim.shard, batch.settling), batch))
        return calls

    def _shard_calls(self, free: int, failures: list[Exception]) -> list[Request]:
        """Look at unread shards, sweep shards where nothing happened for long, and claim from due shards."""
        calls = self._shards.look_calls() + self._shards.sweep_calls(self.config)
        # one batch per worker: more is no faster, and more could be published twice when this process dies
        calls += self._claim_calls(self.store.shards if self._claims_all_shards else free, failures)
        return [(call, None) for call in calls]

    def _claim_calls(self, most: int, failures: list[Exception]) -> list[Call[Any]]:
        """Claims from at most `most` shards, while there is room for more items in flight."""
        room = self.config.max_in_flight - self.stats.in_flight
        return self._shards.claim_calls(most, self._claim_limit, room, self._in_flight.admits, failures)

    def _claim_ahead(self) -> None:
        """Send the claim of the next batch while this one is being published."""
        failures: list[Exception] = []
        for call in self._claim_calls(1, failures):
            self._ahead = send(self.store, [(call, None)], self._local_us(), ahead=True)
        if failures:
            self._store_away(failures[-1])

    def _extend_lease(self, batch: Batch) -> None:
        """A batch is still in flight: extend its lease."""
        if not self._alarms.is_out(batch):
            return
        now_ms, asked_ns = self._now_ms(), self._clock.monotonic_ns()
        if self._claim_source.extend(batch):
            batch.lease_until_ns = asked_ns + self.config.lease_ms * 1_000_000
        self._alarms.extend_lease(batch, now_ms + self.config.lease_ms // 3)

    # -- replies of the store

    def _handle_replies(self, pending: Sequence[PendingCalls], failures: list[Exception]) -> None:
        """Wait for the replies and act on them. Back off when the store or the claim source has failed."""
        for calls in pending:
            replies = calls.replies()
            self._sent_us, received_us = calls.sent_us, self._local_us()
            for reply in replies:
                if isinstance(reply.answer, Exception):
                    self._handle_error(reply, failures)
                    continue
                if jump_us := self._time.observe(reply.answer.now_us, calls.sent_us, received_us):
                    self._handle_jump(jump_us)
                self._handle_reply(reply, calls.ahead)
        if failures:
            self._store_away(failures[-1])
        elif pending:
            self._store_failures = 0

    def _handle_reply(self, reply: Reply, ahead: bool) -> None:
        match reply.answer:
            case Claim() as claim:
                self._claimed(reply.call, claim, ahead)
            case Settled() as settled:
                if reply.batch is not None:
                    self._settled(reply.batch, settled)
                self._shards.heard(reply.call.shard, settled, self._now_ms())
            case Pushed() as pushed:
                self._pushed(pushed)
            case Window() as window:
                self._read(window)
            case Swept() as swept:
                self.stats.sweeps += 1
                self.stats.recovered += swept.recovered
                self._shards.swept(swept.shard, swept.now_us // 1000)
                self._shards.heard(swept.shard, swept, self._now_ms())

    def _handle_error(self, reply: Reply, failures: list[Exception]) -> None:
        self._claim_source.failed(reply.call, reply.answer)
        if isinstance(reply.answer, StaleEpoch):
            self._shards.read_anew([reply.call.shard])
            return
        failures.append(reply.answer)
        if reply.batch is not None:
            self._answered.append(reply.batch)  # again, under the same token

    def _handle_jump(self, step_us: int) -> None:
        self.stats.clock_jumps += 1
        logger.warning("dispatcher.clock_jumped: the store's clock moved by %.1f s", step_us / 1e6)
        step_ms = step_us // 1000
        # If this report fails, the next dispatcher that sees the step reports it. The scripts notice backward steps
        # themselves.
        self.store.execute([Call(shard, ReportJump(epoch, step_ms)) for shard, epoch in self._shards.epochs.items()])
        self._alarms.restart(self._now_ms(), self._now_ms() + self.config.lease_ms // 3)
        self._shards.clock_jumped()

    def _store_away(self, error: BaseException) -> None:
        self.stats.store_errors += 1
        self._store_failures += 1
        if not isinstance(error, StoreError):
            logger.error("dispatcher.step_failed: the dispatcher continues", exc_info=error)
        elif self._store_failures == 1:
            logger.warning("dispatcher.store_away: %s", error)
        self._shards.read_anew()  # at every reconnect
        delay_ms = min(50 * 2 ** min(self._store_failures, 10), self.config.backoff_max_ms, 5_000)
        self._back_off_until_us = self._local_us() + delay_ms * 1000

    def _read(self, window: Window) -> None:
        self._claim_source.looked(window)
        self._shards.read(window.shard, window.epoch)
        self._shards.heard(window.shard, window, self._now_ms())
        self._marks[window.shard] = window.mark
        if len(self._marks) == self.store.shards and not self._listeners:
            self._listeners.start(self._marks)

    def _claimed(self, call: Call[Any], claim: Claim, ahead: bool) -> None:
        self._claim_source.claimed(call, claim)
        self._shards.epochs[claim.shard] = claim.epoch
        self.stats.claims += 1
        self._in_flight.claimed(claim, self.config.batch)
        if claim.items:
            batch = Batch(claim, claim.items)
            self._hold(batch)
            self._ready.append(batch)
        else:
            self.stats.empty_claims += 1
        self._shards.heard(claim.shard, claim, self._now_ms(), keep=ahead)

    def _pushed(self, pushed: Pushed) -> None:
        self._shards.epochs[pushed.shard] = pushed.epoch
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
            self._in_flight.watch(batch)
        self._shards.heard(pushed.shard, pushed, self._now_ms())

    def _hold(self, batch: Batch) -> None:
        """Take a claimed batch. It belongs to this dispatcher until its lease ends; an alarm extends it before."""
        batch.lease_until_ns = self._sent_us * 1000 + self.config.lease_ms * 1_000_000
        batch.on_answered = self._on_answered
        self.stats.in_flight += len(batch.items)
        self._alarms.extend_lease(batch, self._now_ms() + self.config.lease_ms // 3)

    def _settled(self, batch: Batch, settled: Settled) -> None:
        outcomes = settled.outcomes if batch.ended_early is None else batch.outcomes_with(settled.outcomes)
        self._ended(batch, outcomes, settled.now_us)

    def _ended(self, batch: Batch, outcomes: Sequence[Outcome], now_us: int) -> None:
        """A batch has ended in the store, or this dispatcher gives it up without settling it."""
        self._alarms.done(batch)
        self._in_flight.settled(batch)
        settlements = batch.settlements or ()
        self.stats.settled(batch.items, settlements, outcomes, now_us)
        if self._on_settled is not None:
            report_settled(self._on_settled, zip(batch.items, settlements, outcomes, strict=True), now_us // 1000)

    # -- from other threads

    def _on_mark(self, shard: int, mark: Marker) -> None:
        """The listener has read a marker: an item is due earlier than all others."""

        def wake() -> None:
            self.stats.marks += 1
            self._shards.marked(shard, mark.due_ms, self._now_ms())

        self._post(wake)

    def _on_reconnect(self, shards: Sequence[int]) -> None:
        def read_anew() -> None:
            self.stats.reconnects += 1
            self._shards.read_anew(shards)

        self._post(read_anew)

    def _on_returned(self, batch: Batch) -> None:
        self._post(lambda: self._in_flight.end(batch))

    def _on_answered(self, batch: Batch) -> None:
        self._post(lambda: self._in_flight.check(batch))
