"""The owner loop: what a dispatcher does, step by step, without a thread.

    step:  run posts ─► run alarms ─► round trip (settle, look, sweep, claim) ─► hand to workers ─► next deadline

The owner, which is the thread that calls `step`, holds all state and makes all store calls except the blocking read of
the listeners. So nothing here needs a lock. Other threads (listeners, workers, callers of `stop`) only `post` a
callback. Alarms of shards use the store's time, batches use local time. A claim source says from which shards to claim
and how a claim ends.

Invariant: a shard's alarm is no later than the time at which the claim source wants to look there. The call that stores
an earlier item also writes a marker, which wakes the dispatcher. So a sleeping dispatcher wakes in time. A sweep finds
items whose markers were lost with a server's memory.

At most `workers` batches at a time are being published or settled. So when this process dies, at most this many batches
are published twice. If `publish` waits for nothing and returns with all answers (see `Workers.at_once`), the owner
sends the claim of the next batch before it publishes the present batch. So the server works on that claim meanwhile.
The owner publishes the next batch only after it has settled the present one. If this process dies before that, the next
batch is not published twice: its items become due again when their lease ends. With a transactional publisher, a shard
has one batch at the publisher. A second one waits behind it only after a claim that was full, because then more items
may be due.

Source: Kafka's `SystemTimer` and its reaper. The delay store takes the place of Kafka's purgatory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.batch_size import BatchSize
from wheel_sched.dispatcher.claim_source import ClaimSource, PushTarget, SharedLeases
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.due_shards import DueShards
from wheel_sched.dispatcher.in_flight import InFlightBatches
from wheel_sched.dispatcher.publisher import Batch, Publisher
from wheel_sched.dispatcher.statistics import DispatcherStats
from wheel_sched.dispatcher.store_calls import FailurePause, PendingCalls, Reply, Request, ServerTime, send
from wheel_sched.dispatcher.workers import Watchdog, Workers
from wheel_sched.errors import StaleEpoch
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import Joined
from wheel_sched.store import Claim, Claimed, DelayStore, Marker, Pushed, Settled, Settlement, Swept, Window
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.sweep import ReportJump
from wheel_sched.store.fair_shares.operations import PreparedDue

logger = logger_of("wheel_sched.dispatcher")

OWNER: Final = "wheel-sched-dispatcher"
AT_ONCE: Final = 0
"""The result of `step` when work is left, so that the driver must call `step` again at once."""


class OwnerLoop:
    """The work of one dispatcher. It starts no thread, holds no lock, and waits for nothing but the store's replies.

    A driver calls `step` again at the time that the last `step` returned, or earlier after a `post`:

        loop = OwnerLoop(store, publisher, clock=clock)
        while not loop.finished:
            wait_until(loop.step())

    `Dispatcher` drives the loop in a thread. A simulator drives it in the simulator's loop, on a virtual clock. There,
    the publisher declares `never_waits`, so that `step` publishes, and the simulator calls `marked` for each marker.

    Args:
        store, publisher, push, claims, config, clock, on_settled: see `Dispatcher`.
        wake: called after each post, in any thread.
        listen: called once, when all shards were read, with the last marker of each shard. From then on the driver
            must call `marked` for each newer marker.

    Attributes:
        finished: whether the drain is over, so that the driver must not call `step` any more.

    Thread rules: `post`, `drain`, `marked` and `reconnected` from any thread; all other calls from one thread.
    """

    def __init__(
        self,
        store: DelayStore,
        publisher: Publisher,
        *,
        clock: Clock,
        config: DispatcherConfig,
        push: PushTarget | None = None,
        claims: ClaimSource | None = None,
        on_settled: Callable[[Claimed, Settlement, int], None] | None = None,
        wake: Callable[[], object] = lambda: None,
        listen: Callable[[Mapping[int, bytes]], object] = lambda _: None,
    ) -> None:
        self.finished = False
        self.stats = DispatcherStats()
        self.watchdog = Watchdog(clock)
        self.workers = Workers(publisher, config, clock, self.watchdog, self._on_returned)
        self._store = store
        self._config = config
        self._clock = clock
        self._wake = wake
        self._listen = listen
        self._claim_source: ClaimSource = claims or SharedLeases(store, config, push)
        transactional = self._transactional = publisher.traits.transactional
        self._batch_size = BatchSize(config.batch, config.script_us)
        # with a push or with transactions, a claim need not wait for a free worker
        self._claims_all_shards = push is not None or transactional
        self._time = ServerTime()
        self.shards = DueShards(store.shards, self._claim_source, config)
        self.in_flight = InFlightBatches(
            config, clock, self._claim_source, self.stats, transactional=transactional, on_settled=on_settled
        )
        self._posts: deque[Callable[[], None]] = deque()
        self._marks: dict[int, bytes] = {}
        self._ahead: PendingCalls | None = None  # the claim of the next batch, sent while one is being published
        self._drain_by_ns: int | None = None
        self._draining = False
        self._pause = FailurePause(config.backoff_max_ms)

    @property
    def reads_store(self) -> bool:
        """Whether every shard was read since the store last failed."""
        return not self.shards.unread and not self._pause.failures

    @property
    def has_posts(self) -> bool:
        """Whether a callback waits for the next step."""
        return bool(self._posts)

    # -- from any thread

    def post(self, callback: Callable[[], None]) -> None:
        """Let the next step call `callback`."""
        self._posts.append(callback)
        self._wake()

    def drain(self, by_ns: int) -> None:
        """Claim no more. The loop is finished when all batches are settled, at `by_ns` (local time) at the latest."""
        self._drain_by_ns = by_ns
        self.post(lambda: None)

    def marked(self, shard: int, mark: Marker) -> None:
        """Report a marker of the store: an item is due earlier than all others."""

        def look() -> None:
            self.stats.marks += 1
            self.shards.marked(shard, mark.due_ms, self._now_ms())

        self.post(look)

    def reconnected(self, shards: Sequence[int]) -> None:
        """Report that the connection that reads the markers of these shards was lost and is up again."""

        def read_anew() -> None:
            self.stats.reconnects += 1
            self.shards.read_anew(shards)

        self.post(read_anew)

    def _on_returned(self, batch: Batch) -> None:
        self.post(lambda: self.in_flight.end(batch))

    def _on_answered(self, batch: Batch) -> None:
        self.post(lambda: self.in_flight.check(batch))

    # -- one step

    def step(self) -> int | None:
        """Do all work that can be done now. Raises nothing: after an unexpected error the loop backs off, a drain ends.

        Returns:
            When the next step is necessary, in local monotonic microseconds; `AT_ONCE` when work is left, None when
            no step is necessary until somebody calls `post`.
        """
        try:
            return self._step()
        except BaseException as error:
            if self._drain_by_ns is not None:
                logger.exception("dispatcher.stop_failed: batches in flight come back when their lease ends")
                self.finished = True
            else:
                self._back_off(error)
                self.in_flight.after_failure()
            return AT_ONCE

    def _step(self) -> int | None:
        if self._drain_by_ns is not None and not self._draining:
            self._begin_drain(self._drain_by_ns)
        self.watchdog.beat(OWNER)
        while self._posts:
            self._posts.popleft()()
        self.in_flight.timer.run_due()
        if self.finished:
            return AT_ONCE
        if self._time.known:
            self.stats.wake_ups += self.shards.run_due(self._now_ms())
        sent = self._run_round_trip()
        if self._hand_to_workers() or sent:
            return AT_ONCE
        return self._next_step_us()

    def _run_round_trip(self) -> bool:
        """Settle, look, sweep and claim in one round trip; False when there was nothing to send."""
        if self._local_us() < self._pause.until_us and self._drain_by_ns is None:
            return False
        settling = self._settle_calls()
        ahead, self._ahead = self._ahead, None
        free = self._config.workers - len(self.in_flight) + len(settling) - (ahead is not None)
        failures: list[Exception] = []
        claiming = [] if self._drain_by_ns is not None else self._shard_calls(max(0, free), failures)
        if not settling and not claiming and ahead is None and self._drain_by_ns is None and self._time.known:
            claiming = [(call, None) for call in self.shards.prepare_calls(self._now_ms())]
        pending = [] if ahead is None else [ahead]
        # settlements and claims are two messages: the server can serve other clients between them
        with self.watchdog.round_trip():
            pending += [send(self._store, each, self._local_us()) for each in (settling, claiming) if each]
            self._handle_replies(pending, failures)
        return bool(pending)

    def _hand_to_workers(self) -> bool:
        """Give ready batches to free workers; a transactional publisher gets all. Returns False if none was given."""
        ready = self.in_flight.ready
        count = len(ready)
        while ready and (self._transactional or len(self.in_flight) - len(ready) < self._config.workers):
            batch = ready.popleft()
            if self.workers.at_once and self._ahead is None and self._drain_by_ns is None:
                self._claim_ahead()
            self.in_flight.watch(batch)
            self.workers.give(batch)
        return len(ready) < count

    def _next_step_us(self) -> int | None:
        if self._posts or (self._drain_by_ns is not None and not self._draining):  # `drain` was called in this step
            return AT_ONCE
        local_us = self._local_us()
        until_us = [self._pause.until_us] if self._pause.until_us > local_us else []
        if self.shards.unread and not until_us and self._drain_by_ns is None:
            return AT_ONCE
        if not until_us and self._time.known:
            search_ms = self.shards.next_preparation_ms() if self._drain_by_ns is None else None
            alarms_ms = [at_ms for at_ms in (self.shards.next_ms(), search_ms) if at_ms is not None]
            until_us += [local_us + at_ms * 1000 - self._time.now_us(local_us) for at_ms in alarms_ms]
        if (timer_ms := self.in_flight.timer.next_ms()) is not None:
            until_us.append(timer_ms * 1000)
        self.watchdog.rest(OWNER)
        return min(until_us, default=None)

    def _local_us(self) -> int:
        return self._clock.monotonic_ns() // 1000

    def _now_ms(self) -> int:
        return self._time.now_us(self._local_us()) // 1000

    # -- calls to the store

    def _settle_calls(self) -> list[Request]:
        if not self.in_flight.answered:
            return []
        calls, unknown = self.in_flight.settle_calls(self._now_ms())
        self.shards.read_anew(unknown)
        return calls

    def _shard_calls(self, free: int, failures: list[Exception]) -> list[Request]:
        """The calls that look at unread shards, sweep the shards that need a sweep, and claim from due shards."""
        calls = self.shards.look_calls() + self.shards.sweep_calls()
        # One batch per worker. More batches are no faster, and a death of this process may publish each batch twice.
        calls += self._claim_calls(self._store.shards if self._claims_all_shards else free, failures)
        return [(call, None) for call in calls]

    def _claim_calls(self, most: int, failures: list[Exception]) -> list[Call[Any]]:
        """The calls that claim from at most `most` shards, while there is room for more items in flight."""
        room = self._config.max_in_flight - self.stats.in_flight
        return self.shards.claim_calls(most, self._batch_size.limit, room, self.in_flight.admits, failures)

    def _claim_ahead(self) -> None:
        """Send the claim of the next batch. The server performs it while the publisher publishes the present batch."""
        failures: list[Exception] = []
        for call in self._claim_calls(1, failures):
            self._ahead = send(self._store, [(call, None)], self._local_us(), ahead=True)
        if failures:
            self._back_off(failures[-1])

    # -- replies of the store

    def _handle_replies(self, pending: Sequence[PendingCalls], failures: list[Exception]) -> None:
        """Wait for the replies and act on them. Back off when the store or the claim source has failed."""
        for calls in pending:
            replies = calls.replies()
            received_us = self._local_us()
            for reply in replies:
                if isinstance(reply.answer, Exception):
                    self._handle_error(reply, failures)
                    continue
                if jump_us := self._time.observe(reply.answer.now_us, calls.sent_us, received_us):
                    self._handle_jump(jump_us)
                self._handle_reply(reply, calls)
        if failures:
            self._back_off(failures[-1])
        elif pending:
            self._pause.answered()

    def _handle_reply(self, reply: Reply, calls: PendingCalls) -> None:
        match reply.answer:
            case Claim() as claim:
                self._handle_claim(reply.call, claim, calls)
            case Settled() as settled:
                if reply.batch is not None:
                    self.in_flight.settled(reply.batch, settled)
                self.shards.replied(reply.call.shard, settled, self._now_ms())
            case Pushed() as pushed:
                self._handle_push(pushed, calls)
            case Window() as window:
                self._handle_window(window)
            case PreparedDue() as prepared:
                self.shards.prepared(prepared.shard, prepared, self._now_ms())
            case Swept() as swept:
                self.stats.sweeps += 1
                self.stats.recovered += swept.recovered
                self.shards.swept(swept.shard, swept.now_us // 1000)
                self.shards.replied(swept.shard, swept, self._now_ms())

    def _handle_claim(self, call: Call[Any], claim: Claim, calls: PendingCalls) -> None:
        self._claim_source.claimed(call, claim)
        self.shards.epochs[claim.shard] = claim.epoch
        self.stats.claims += 1
        self.in_flight.claimed(claim, self._batch_size.limit)
        self._batch_size.claimed(len(claim.items), claim.script_us)
        if claim.items:
            batch = Batch(claim, claim.items, on_answered=self._on_answered)
            self.in_flight.hold(batch, calls.sent_us)
            self.in_flight.ready.append(batch)
        else:
            self.stats.empty_claims += 1
        self.shards.replied(claim.shard, claim, self._now_ms(), keep=calls.ahead)

    def _handle_push(self, pushed: Pushed, calls: PendingCalls) -> None:
        self.shards.epochs[pushed.shard] = pushed.epoch
        self.stats.claims += 1
        self._batch_size.claimed(len(pushed.dues_ms) + len(pushed.refused), pushed.script_us)
        if pushed.dues_ms:
            self.stats.published += len(pushed.dues_ms)
            self.stats.late(pushed.now_us // 1000, pushed.dues_ms)
        elif not pushed.refused:
            self.stats.empty_claims += 1
        if pushed.refused:
            answers = [(each.item, self.workers.refuse(each)) for each in pushed.refused]
            self.in_flight.refused(pushed, answers, self._on_answered, calls.sent_us)
        self.shards.replied(pushed.shard, pushed, self._now_ms())

    def _handle_window(self, window: Window) -> None:
        self._claim_source.looked(window)
        self.shards.read(window.shard, window.epoch)
        self.shards.replied(window.shard, window, self._now_ms())
        listening = len(self._marks) == self._store.shards
        self._marks[window.shard] = window.mark
        if not listening and len(self._marks) == self._store.shards:
            self._listen(self._marks)

    def _handle_error(self, reply: Reply, failures: list[Exception]) -> None:
        self._claim_source.failed(reply.call, reply.answer)
        if isinstance(reply.answer, StaleEpoch):
            self.shards.read_anew([reply.call.shard])
            return
        failures.append(reply.answer)
        if reply.batch is not None:
            self.in_flight.answered.append(reply.batch)  # the next step repeats the settlement, with the same token

    def _handle_jump(self, step_us: int) -> None:
        self.stats.clock_jumps += 1
        logger.warning("dispatcher.clock_jumped: the store's clock moved by %.1f s", step_us / 1e6)
        step_ms = step_us // 1000
        # If this report fails, the next dispatcher that sees the jump reports it. The scripts notice jumps to an
        # earlier time without a report.
        self._store.execute([Call(shard, ReportJump(epoch, step_ms)) for shard, epoch in self.shards.epochs.items()])
        self.shards.clock_jumped(self._now_ms())

    def _back_off(self, error: BaseException) -> None:
        """Send nothing for a while, then read all shards again, because the store did not answer or a step failed."""
        self.stats.store_errors += 1
        self._pause.failed(error, self._local_us())
        self.shards.read_anew()  # the store may have changed until the next connection

    # -- draining

    def _begin_drain(self, by_ns: int) -> None:
        self._draining = True
        if self._ahead is not None:
            self._handle_replies([self._ahead], [])
            self._ahead = None
        left_ns = by_ns - self._clock.monotonic_ns()
        self.in_flight.drain(max(0, left_ns // 1_000_000), self._end_drain)

    def _end_drain(self, batches: Joined[Batch]) -> None:
        """End the drain. Items that still have no answer are in doubt, and wait again in the store."""
        self.in_flight.give_up(batches.missing)
        self._run_round_trip()
        self.finished = True
