"""RedisWheelJobStore: jobs that many scheduler processes share, on the delay store.

What it is. A jobstore for any APScheduler 3 scheduler in which each occurrence is handed to one process, under a lease,
and stays in the store until it has ended; a process that dies loses none. Jobs are JSON under an allow-list, never
pickle unless asked for. See `bracket` for how a stock scheduler drives it and `passes` for our own.

Cost. One round trip a pass, which tells how the last jobs ended and claims the next; nothing per job. Idle: one look
in `max_sleep_s`, and a blocked read that hears of earlier jobs from other processes.

Threads. Any for everything; a lock keeps claims and settlements in order. Two threads of its own, from `start` to
`shutdown`. Errors of the store never reach a scheduler's loop: a pass without a store is an empty one that says when
to come again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from wheel_sched.errors import ConfigError, StoreError, StoreUnavailable
from wheel_sched.store import Claim, DelayStore, open_store
from wheel_sched.store.operations import Call, ClaimDue, new_token
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.codec.secret import secret_for, warn_once
from wheel_sched_apscheduler.codec.signing import Secret
from wheel_sched_apscheduler.instants import floor_ms, from_ms, in_utc, to_ms, to_us
from wheel_sched_apscheduler.misfire import MISFIRES, Misfire
from wheel_sched_apscheduler.occurrence import Finish, Fire
from wheel_sched_apscheduler.settings import flag, seconds, whole
from wheel_sched_apscheduler.stores.at_most_once import settled_first
from wheel_sched_apscheduler.stores.claims import Flights, Parcel
from wheel_sched_apscheduler.stores.connection import LastingStore
from wheel_sched_apscheduler.stores.contract import Batch
from wheel_sched_apscheduler.stores.loading import Loading
from wheel_sched_apscheduler.stores.max_instances import SCOPES, InstancesScope, keep_to_limits
from wheel_sched_apscheduler.stores.pending_adds import WaitingRoom
from wheel_sched_apscheduler.stores.queries import Catalogue
from wheel_sched_apscheduler.stores.repository import Shelf
from wheel_sched_apscheduler.stores.run_history import Chronicle
from wheel_sched_apscheduler.stores.run_marks import Marks
from wheel_sched_apscheduler.stores.scheduler_pass import BracketStore
from wheel_sched_apscheduler.stores.settler import Keeper

Delivery = Literal["at_least_once", "at_most_once"]
NAMESPACE = "apscheduler"
RETRY_S = (0.2, 0.5, 1.0, 2.0)  # how long after a store error the next pass comes, by how many there were in a row

AT_ONCE_S = 0.2  # within this a pass comes that was told that more is due
QUIET_S = 0.02  # and so long after any other pass the keeper leaves what has ended to the next one


class RedisWheelJobStore(Catalogue, BracketStore):
    """Jobs in Redis or Valkey, shared by any number of processes; plugin alias `wheel-redis`.

    Args:
        url: redis://, rediss://, unix:// or embedded:FOLDER. Defaults to "redis://localhost:6379/0".
        client: instead of a URL, a redis-py client: standalone, from a Sentinel, or of a Cluster. Defaults to None.
        store: instead of both, an open `DelayStore`. Defaults to None.
        namespace: prefix of all keys. Defaults to "apscheduler".
        shards: fixed when the namespace is created; more than one spreads it over a cluster. Defaults to 1.
        durability: what a write waits for, see docs/guarantees.md. Defaults to "everysec".
        replicas: how many replicas confirm under "replicated". Defaults to 1.
        codec: how jobs are written; instead of the next five. Defaults to None.
        allow, triggers, aliases, allow_pickle: see `JobCodec`.
        secret: signs the jobs, see `JobCodec`. Defaults to None: the environment's WHEEL_SCHED_APS_SECRET, over a
            folder (`embedded:`) one that is kept in it, else jobs are not signed.
        lease_s: how long after a process died its jobs are handed out again. Defaults to 30.
        delivery: "at_most_once" settles an occurrence before it runs, so that a crash loses it. Defaults to
            "at_least_once".
        misfire: from when lateness counts, see `misfire`. Defaults to "lenient".
        max_instances_scope: over what `max_instances` is counted: "store", all processes; "process", each for itself,
            as stock does. Defaults to "store".
        batch: how many jobs one pass hands over at most. Defaults to 200.
        max_sleep_s: how long a scheduler sleeps at most, should a wake-up be lost. Defaults to 10.
        history: how many items of ends are kept, of up to 50 ends each; 0 = none. Defaults to 1000.
        quarantine_refusals, quarantine_after_s: what a process cannot run (a function, an executor or a secret it
            does not have) it gives back for others; in so many rounds, see `loading`, and for so long, until the
            job is quarantined. Defaults to 10 and 600.

    Raises:
        ConfigError: with all that is wrong; nothing was opened.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Any = None,
        store: DelayStore | None = None,
        namespace: str = NAMESPACE,
        shards: int = 1,
        durability: str = "everysec",
        replicas: int = 1,
        codec: JobCodec | None = None,
        allow: Iterable[str | Callable[..., Any]] | None = None,
        triggers: Iterable[type | str] = (),
        aliases: Mapping[str, str] | None = None,
        secret: Secret | None = None,
        allow_pickle: bool = False,
        lease_s: float = 30.0,
        delivery: Delivery = "at_least_once",
        misfire: Misfire = "lenient",
        max_instances_scope: InstancesScope = "store",
        batch: int = 200,
        max_sleep_s: float = 10.0,
        history: int = 1000,
        quarantine_refusals: int = 10,
        quarantine_after_s: float = 600.0,
    ) -> None:
        super().__init__()
        problems: list[str] = []
        shards = whole("shards", shards, 1, None, problems)
        replicas = whole("replicas", replicas, 1, None, problems)
        lease_s = seconds("lease_s", lease_s, 0.1, 86_400, problems)
        max_sleep_s = seconds("max_sleep_s", max_sleep_s, 0.01, 3600, problems)
        batch = whole("batch", batch, 1, 500, problems)
        history = whole("history", history, 0, None, problems)
        quarantine_refusals = whole("quarantine_refusals", quarantine_refusals, 1, None, problems)
        quarantine_after_s = seconds("quarantine_after_s", quarantine_after_s, 0, 86_400 * 365, problems)
        allow_pickle = flag("allow_pickle", allow_pickle, problems)
        if sum(target is not None for target in (url, client, store)) > 1:
            problems.append("expected one of url, client and store, got several")
        if delivery not in ("at_least_once", "at_most_once"):
            problems.append(f"expected delivery to be at_least_once or at_most_once, got: {delivery!r}")
        if max_instances_scope not in SCOPES:
            problems.append(f"expected max_instances_scope to be store or process, got: {max_instances_scope!r}")
        if misfire not in MISFIRES:
            problems.append(f"expected misfire to be one of {', '.join(MISFIRES)}, got: {misfire!r}")
        if problems:
            raise ConfigError(problems)
        self._target = client if client is not None else url or "redis://localhost:6379/0"
        self.codec = codec or JobCodec(
            allow=allow,
            triggers=triggers,
            aliases=aliases,
            secret=secret if secret is not None else secret_for(self._target if store is None else store),
            allow_pickle=allow_pickle,
        )
        self._settings: dict[str, Any] = {
            "namespace": namespace,
            "shards": shards,
            "durability": durability,
            "replicas": replicas,
        }
        self._store = store
        self._owns_store = store is None
        self._lease_ms = int(lease_s * 1000)
        self._delivery: Delivery = delivery
        self._counts_all = max_instances_scope == "store"
        self._batch = batch
        self._max_sleep_s = max_sleep_s
        self._shards = shards if store is None else store.shards
        self._flights = Flights(self.codec, self._shards, self._lease_ms, self._forget)
        self._marks = Marks(self._shards, self._lease_ms)
        self._io = threading.RLock()  # one conversation about claims at a time
        self._opening = threading.Lock()
        self._claim_tokens = [new_token() for _ in range(self._shards)]
        self._failures = 0
        self._ahead_ms = 0  # the store's clock minus ours
        self._pass_until_s = 0.0  # so long a pass is expected to come, on the monotonic clock
        self._planned_ms: int | None = None  # when the scheduler will come without being woken
        self._keeper: Keeper | None = None
        self._closed = False
        self._waiting_room: WaitingRoom | None = None
        self._shelf = Shelf(self)
        self._loading = Loading(self, misfire, quarantine_refusals, int(quarantine_after_s * 1000))
        self._chronicle = Chronicle(history, self._lease_ms)

    # Life.

    @property
    def store(self) -> DelayStore:
        """The delay store, opened when it is first needed.

        Raises:
            StoreError: the server is away, too old, or the namespace is another.
        """
        if self._store is None:
            with self._opening:
                if self._store is None:
                    opened = open_store(self._target, **self._settings)
                    self._store = LastingStore(opened.backend, shards=opened.shards)
        return self._store

    def start(self, scheduler: Any, alias: str) -> None:
        """Open the store and start the two threads. A store that is away, or still loads, is waited for by one of them.

        Raises:
            StoreError: it is there, but cannot be used, see `store`; the scheduler does not start either.
        """
        super().start(scheduler, alias)
        self._closed = False
        if not self.codec.signed and self._target != "memory:":
            warn_once(self._logger, self.codec.allowed)
        self._chronicle.closing = False
        self._waiting_room = WaitingRoom(self)
        keeper = Keeper(
            lambda: self.store,
            self._flush_when_quiet,
            self.beat,
            self._nap_s,
            self._heard,
            self._waiting_room.let_in,
            self._lease_ms / 3000,
            # a server of one's own takes as long as it takes to start, and never hangs for a network
            patient=isinstance(self._target, str) and self._target.startswith("embedded:"),
        )
        keeper.start()
        self._keeper = keeper

    def shutdown(self) -> None:
        """Tell the store what has ended. What still runs keeps its lease until it ends or the process does."""
        self._closed = True
        self._plan_rest()
        keeper, self._keeper = self._keeper, None
        self._chronicle.closing = True
        if self._waiting_room is not None:
            self._waiting_room.close()
        if keeper is not None:
            try:
                self.flush()  # here and now: a process may end as soon as this returns
            except Exception as error:  # also what a client library raises besides its own errors
                self._logger.warning("The store could not be told what ended last; that comes again: %s", error)
            keeper.stop(until=lambda: not self._flights.flying and not self._marks, then=self._close)
        else:
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(StoreError):
            if self._chronicle.announced:
                self.store.cancel([self._chronicle.worker_id])
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None

    def __repr__(self) -> str:
        target = self._settings["namespace"]
        return f"<{type(self).__name__} namespace={target} in_flight={len(self._flights)} lease={self._lease_ms}ms>"

    # The seam, see `passes`.

    def claim_batch(self, now: datetime, limit: int | None = None) -> Batch:
        """One round trip: what has ended since the last one is settled, and what is due at `now` is claimed."""
        limit = min(limit or self._batch, 500)
        fires: list[Fire] = []
        now_ms = floor_ms(now)
        with self._io:
            self._pass_until_s = time.monotonic() + AT_ONCE_S
            if (
                self._closed
            ):  # a pass of a stock scheduler that waited while this was shut down: it must not open it again
                return Batch()
            if self._store is None and self._keeper is not None:  # a pass does not wait for a connection
                return self._failed(now, StoreUnavailable("it was not there at the start"))
            try:
                asked_ms = time.time_ns() // 1_000_000
                parcels = self._flights.gather(self.store_now_ms(), split_due_ms=now_ms) + self._marks.gather()
                operations = [ClaimDue(limit, self._lease_ms, max(now_ms, 0), token=t) for t in self._claim_tokens]
                answers = self._send(parcels, [Call(shard, claim) for shard, claim in enumerate(operations)])
            except Exception as error:  # also what a client library raises besides its own errors
                return self._failed(now, error)
            self._failures = 0
            for shard, claim in enumerate(answers):
                self._claim_tokens[shard] = new_token()
                fires += self._loading.board(claim, shard, now)
            if self._counts_all:
                try:
                    keep_to_limits(self.store, fires)
                except Exception as error:  # as above
                    self.release(fires)
                    return self._failed(now, error)
            if self._delivery == "at_most_once" and fires:
                fires = settled_first(self, fires, now)
            more = any(len(claim.items) == limit for claim in answers)
            wake_at = now if more else self._wake_at_of(answers, asked_ms)
            self._planned_ms = to_ms(wake_at)
            if not more:
                wake_at += timedelta(milliseconds=self._loading.aside_ms(claim.due_head_ms for claim in answers))
            self._pass_until_s = time.monotonic() + (AT_ONCE_S if more else QUIET_S)
            if self._flights.waiting:  # what this pass refused, or what was changed meanwhile
                self._look()
        fires.sort(key=lambda fire: (to_us(fire.scheduled), fire.job_id))
        return Batch(fires, wake_at, more)

    def _wake_at_of(self, claims: Sequence[Claim], asked_ms: int) -> datetime:
        """When something may be due next, by our clock and by the store's."""
        wake_ms = asked_ms + int(self._max_sleep_s * 1000)
        for claim in claims:
            server_ms = claim.now_us // 1000
            self._ahead_ms = server_ms - asked_ms
            if claim.due_head_ms is not None:  # both clocks must have come to it
                wake_ms = min(wake_ms, max(claim.due_head_ms, asked_ms + claim.due_head_ms - server_ms))
            if claim.fly_head_ms is not None:
                wake_ms = min(wake_ms, asked_ms + max(claim.fly_head_ms - server_ms, 0) + 1)
        return from_ms(wake_ms)

    def _failed(self, now: datetime, error: Exception) -> Batch:
        if self._failures == 0:
            self._logger.warning("The store does not answer, jobs wait until it does: %s", error)
        wait_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        return Batch([], max(in_utc(now), datetime.now(UTC)) + timedelta(seconds=wait_s))

    def hand_over(self, fires: Sequence[Fire]) -> None:
        """See `passes`."""
        if self.driven or self._scheduler is None:
            for fire in fires:
                fire.handed_over = True
        if self._delivery == "at_most_once":
            return
        with self._io:
            self._flights.handed_over(fires)
            for fire in fires:
                if fire.next_run_time is not None and self._planned_ms is not None:
                    self._planned_ms = min(self._planned_ms, to_ms(fire.next_run_time))
        if fires:
            self._look()

    def finish(self, fire: Fire, finish: Finish, error: str = "") -> None:
        """See `passes`."""
        fire.note_end(finish, error)
        self._chronicle.note(fire)
        if self._delivery == "at_least_once":
            self._flights.end(fire)
        self._marks.end(fire)
        self._look()

    def release(self, fires: Iterable[Fire], delay_ms: int = 0) -> None:
        """See `passes`."""
        for fire in fires:
            self._marks.end(fire)
            self._flights.put_back(fire, self.store_now_ms() + delay_ms if delay_ms else None)
        self._look()

    def _look(self) -> None:
        """Have the keeper tell what there is to tell; it may be long until the next pass."""
        if self._keeper is not None:
            self._keeper.look()

    def _unknown_executor(self, fire: Fire) -> None:
        self._loading.refuse_fire(fire, f"the scheduler has no executor {fire.job.executor!r}")

    def _trigger_failed(self, fire: Fire, error: Exception) -> None:
        nobody = self.codec.is_built_in(fire.ticket.stored.trigger)  # and is it of an application, a release may differ
        self._loading.refuse_fire(fire, f"its trigger failed: {error!r}", error=error, nobody=nobody)

    # What the keeper does.

    def store_now_ms(self) -> int:
        """The store's time, as of the last answer."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def flush(self) -> None:
        """Tell the store what has ended and free what runs long.

        Raises:
            StoreError: it does not answer; what was to be told is kept.
        """
        with self._io:
            now_ms = self.store_now_ms()
            parcels = self._flights.gather(now_ms) + self._marks.gather() + self._chronicle.gather(now_ms)
            if parcels:
                self._send(parcels, [])
            announcement = self._chronicle.announcement(self._flights.flying.values(), now_ms)
            if announcement is not None:
                self.store.replace(announcement, create=True)

    def _flush_when_quiet(self) -> None:
        """`flush`, unless a pass is about to come: it carries the rest along, and must not wait for us."""
        if time.monotonic() > self._pass_until_s:
            self.flush()

    def beat(self) -> None:
        """Extend the leases of what is running here.

        Raises:
            StoreError: it does not answer.
        """
        with self._io:
            parcels = self._flights.heartbeats(self.store_now_ms(), self._runs)
            parcels += self._marks.heartbeats(self.store_now_ms(), self._runs)
            parcels += self._chronicle.trims(self._shards)
            if parcels:
                self._send(parcels, [], keep=False)

    def _runs(self, fire: Fire) -> bool:
        """Whether a fire is running, as far as can be seen: an executor that broke tells no end."""
        scheduler = self._scheduler
        if scheduler is None or self.driven:
            return fire.handed_over
        executor = scheduler._executors.get(fire.job.executor)
        instances = getattr(executor, "_instances", None)
        fire.unseen = 0 if instances is None or fire.job_id in instances else fire.unseen + 1
        return fire.alive

    def _nap_s(self) -> float | None:
        """How long the keeper may sleep: 0 when there is something to tell."""
        now_s = time.monotonic()
        if self._flights.waiting or self._marks.waiting:
            return 0.0
        naps = [self._flights.next_split_s(now_s), self._chronicle.next_s(bool(self._flights), now_s)]
        return min((nap for nap in naps if nap is not None), default=None)

    def _send(self, parcels: Sequence[Parcel], calls: Sequence[Call[Any]], *, keep: bool = True) -> list[Any]:
        """One round trip. Answers those of `calls`; parcels whose answer was lost are kept to be repeated.

        Raises:
            StoreError: one of the answers, after all others were taken in.
        """
        try:
            answers = self.store.execute([*(parcel.call for parcel in parcels), *calls])
        except StoreError:
            if keep:
                self._flights.keep(parcels)
            raise
        failed: Exception | None = None
        earliest_ms: int | None = None
        for parcel, answer in zip(parcels, answers, strict=False):
            if isinstance(answer, Exception):
                failed = answer
                if keep:
                    self._flights.keep([parcel])
                continue
            parcel.answered(answer, parcel.about)
            head_ms = getattr(answer, "due_head_ms", None)
            if head_ms is not None:
                earliest_ms = head_ms if earliest_ms is None else min(earliest_ms, head_ms)
        for answer in answers[len(parcels) :]:
            if isinstance(answer, Exception):
                failed = answer
        if failed is not None:
            raise failed
        if earliest_ms is not None and not calls:
            self._heard(earliest_ms)
        return list(answers[len(parcels) :])

    def _heard(self, due_ms: int) -> None:
        """Something is due then; wake the scheduler if it would sleep longer. Any thread."""
        planned_ms = self._planned_ms
        scheduler = self._scheduler
        if planned_ms is not None and due_ms < planned_ms and scheduler is not None and scheduler.running:
            self._planned_ms = due_ms
            scheduler.wakeup()

    # The contract outside of a pass: see `shelf`.

    def _head(self) -> datetime | None:
        return self._shelf.head()

    def _update(self, job: Any) -> None:
        self._shelf.update(job)

    def _remove(self, job_id: str) -> None:
        self._shelf.remove(job_id)

    def lookup_job(self, job_id: str) -> Any:
        """The job, or None. One round trip."""
        return self._shelf.lookup(job_id)

    def get_all_jobs(self) -> list[Any]:
        """All jobs by next run time, then id; paused ones last. Those that cannot be loaded are left out."""
        return self._shelf.all_jobs()

    def add_job(self, job: Any) -> None:
        """One round trip, atomic.

        Raises:
            ConflictingIdError: there is a job of that id, here or from another process; nothing was changed.
            NotSerializable, Forbidden: the job cannot be stored; nothing was.
            StoreError: the store does not answer; nothing was stored. In a scheduler's `start`, which adds what was
                given to it before, the job is kept instead, until the store answers.
        """
        if self._store is not None or self._waiting_room is None or not self._waiting_room.takes(job):
            self._shelf.add([job])

    def remove_all_jobs(self) -> None:
        """Remove every job; one that runs finishes and does not come again."""
        self._shelf.remove_all()
