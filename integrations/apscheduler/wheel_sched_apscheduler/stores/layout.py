"""How jobs and runs are stored as items of a delay store, and the calls that write these items.

    topic       id                          what the item is
    job         job id                      a job. body: the job (see `codec`); due: its next run time
    occurrence  <run time in ms>\\0<job id>  a *split item*: a run that is stored in an item of its own, beside its
                                            job. body: <run times in us, comma-separated>|<the job>. If jobs are
                                            signed, the body is signed under the item's own id
    run         random                      the mark of a run that has left the store, see `run_records`
    worker      random                      a process with long runs: its host, pid and occurrences. It is held
    history     random                      up to fifty run records. It is a dead letter, and the oldest are dropped

    ref                     which items have it
    tag:<tag>               a job with this tag
    fair:<value>            a job with this fair key, see `fair_jobs`
    run:<job id>            a split item or a mark of this job
    workers                 each item of the topic `worker`
    running                 a job, if it had a split item or a mark when it was written
    waiting                 a split item that was put back; counts only while the item waits
    lost:<run time in ms>   a job whose process was lost during this run, and which was then put back
    refused, refused:...    a job that a process could not run, see `loading`

A paused job is held without a due time. A quarantined job is held with its reason. The due times of a store start in
1970, so a job with an earlier run time is due at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from apscheduler.triggers.date import DateTrigger

from wheel_sched.store import MAX_BATCH, Claimed, Done, Found, Item, Next, Settlement
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched_apscheduler.codec import JobCodec, StoredJob, Unreadable
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.run_times import from_us, to_ms, to_us

JOB = "job"
OCCURRENCE = "occurrence"
HISTORY = "history"
WORKER = "worker"
RUN = "run"
TAG = "tag:"
WORKERS = "workers"
RUNNING = "running"
WAITING = "waiting"  # the ref of a split item that was put back: its run is not under way while the item waits
QUARANTINE = "quarantine"
Key = TypeVar("Key")
Entry = TypeVar("Entry")


def due_of(moment: datetime | None) -> int | None:
    """The due time, in ms, of a job with this next run time. None: the job is paused."""
    return None if moment is None else min(max(to_ms(moment), 0), MAX_DUE_MS)


def claimed_due_ms(found: Found) -> int:
    """The due time of an item in flight, in ms. A claim writes it into the reason of the item."""
    return int(found.reason.lstrip("!").split(":")[1])


def is_cancelled(found: Found) -> bool:
    """Whether an item in flight was cancelled: it does not wait again after its claim."""
    return found.state == "leased" and found.reason.startswith("!")


def run_ref(job_id: str) -> str:
    """The ref by which the store finds the items of a job's runs: split items and marks."""
    return f"run:{job_id}"


def lost_ref(run_ms: int) -> str:
    """The ref of a job whose run at this run time was lost with its process, and was then put back."""
    return f"lost:{run_ms}"


def without_lost(refs: Iterable[str]) -> tuple[str, ...]:
    """The refs, without those that name lost runs (`lost:...`)."""
    return tuple(ref for ref in refs if not ref.startswith("lost:"))


def is_put_back(settlement: Next) -> bool:
    """Whether `RunWriter.put_back` or `put_back_again` has made this settlement of a job."""
    return settlement.body is None or without_lost(settlement.refs) != settlement.refs


def split_item_id(job_id: str, run_ms: int) -> str:
    """The id of the split item, the item of its own in which the job's run at this run time is stored."""
    return f"{run_ms}\0{job_id}"


def job_id_of(item_id: str) -> str:
    """The job id that the id of a job or of a split item contains."""
    return item_id.partition("\0")[2] if "\0" in item_id else item_id


def read_split_item(raw: bytes) -> tuple[list[datetime], bytes]:
    """Read the run times and the job's body from the body of a split item.

    Raises:
        Unreadable: `raw` is no body of a split item.
    """
    head, bar, body = raw.partition(b"|")
    try:
        if not bar:
            raise ValueError("no job")
        return [from_us(int(us)) for us in head.split(b",")], body
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"it is not a stored occurrence (starts {raw[:24]!r}): {error}") from error


class ClaimHandle:
    """Where a claimed occurrence is in the store, and which state it has there."""

    __slots__ = (
        "body",
        "claim_number",
        "due_ms",
        "gone",
        "in_time",
        "item",
        "item_id",
        "refs",
        "released",
        "running",
        "shard",
        "since",
        "split",
        "split_item",
        "stale",
        "stored",
        "unbegun",
        "version",
    )

    def __init__(
        self,
        shard: int,
        claim_number: int,
        item: Claimed,
        *,
        body: bytes,
        refs: tuple[str, ...],
        stored: StoredJob,
        in_time: bool = False,
    ) -> None:
        self.shard = shard
        self.claim_number = claim_number
        self.item = item  # the item as it was claimed
        self.item_id = item.id  # the id of the claimed item; after a split, the id of the split item
        self.due_ms = item.due_ms
        self.body = body  # the body of the job
        self.refs = refs
        self.stored = stored
        self.in_time = in_time  # the job has a misfire grace time, and was claimed within it
        self.version = item.version  # the version of the record from which the settlement is made
        self.split_item = item.topic == OCCURRENCE  # the claimed item is a split item of an earlier process
        self.split = False  # this process has split the run; its split item is due when the lease ends
        self.running = False  # other runs of the job are under way
        self.stale = False  # the store did not find the claim under its id
        self.released = False  # the run does not take place here and goes back to the store
        self.unbegun = False  # at-most-once delivery: the store did not confirm in time that the run has left it
        self.gone = False  # at-most-once delivery: the run has left the store before it began
        self.since = time.monotonic()


class RunWriter:
    """Makes the settlements and split items (runs in items of their own) that report runs to the store. No I/O.

    Args:
        codec: writes jobs.
        shards: number of shards of the namespace.
    """

    def __init__(self, codec: JobCodec, shards: int) -> None:
        self._codec = codec
        self._shards = shards

    def settlement(self, occurrence: Occurrence) -> Settlement:
        """The settlement of the claimed item of an occurrence that has ended."""
        handle: ClaimHandle = occurrence.handle
        if handle.split_item:
            return Done(handle.item_id)
        if occurrence.next_run_time is not None:
            return self.successor(occurrence)
        # a date trigger runs once: a change of the job cannot matter, so the version is not compared
        once = type(handle.stored.trigger) is DateTrigger
        return Done(handle.item_id, None if once else handle.version)

    def successor(self, occurrence: Occurrence, *, running: bool = False) -> Next:
        """The settlement after which the job waits for its next run.

        `running`: this run continues in an item of its own, a split item.
        """
        handle: ClaimHandle = occurrence.handle
        moment = occurrence.next_run_time
        body = self._codec.advanced(handle.stored, moment)
        refs = (*handle.refs, RUNNING) if running or handle.running else handle.refs
        return Next(handle.item_id, due_of(moment), body, JOB, refs, version=handle.version)

    def merged(self, occurrence: Occurrence, found: Found, *, running: bool) -> Settlement:
        """The settlement of a job whose record another process has replaced in flight.

        If that process has changed the run time, the new run time stays. Otherwise the job runs next as planned.

        Args:
            occurrence: the run that has ended or was split.
            found: the present record of the job.
            running: whether the run continues in an item of its own, a split item.
        """
        handle: ClaimHandle = occurrence.handle
        moment = self._codec.next_run_time(found.body)
        body = found.body
        if moment is not None and to_us(moment) == to_us(occurrence.scheduled):
            moment = occurrence.next_run_time
            if moment is None:
                return Done(found.id, found.version)
            body = self._codec.moved(found.id, found.body, moment)
        handle.version = found.version
        refs = tuple(ref for ref in without_lost(found.refs) if ref != RUNNING)
        if running or handle.running:
            refs += (RUNNING,)
        return Next(found.id, due_of(moment), body, JOB, refs, version=found.version)

    def split_item_of(self, occurrence: Occurrence, due_ms: int, *, waiting: bool = False) -> Item:
        """The split item, an item of its own, in which an occurrence continues.

        `waiting`: the occurrence was put back, so no process runs it now.
        """
        run_times, body = occurrence.run_times or [occurrence.scheduled], occurrence.handle.body
        item = self.split_item(occurrence.job_id, to_ms(run_times[0]), run_times, body, due_ms=due_ms)
        return replace(item, refs=(*item.refs, WAITING)) if waiting else item

    def put_back(self, occurrence: Occurrence, due_ms: int) -> Settlement:
        """The settlement after which a claimed item that did not run is due again at `due_ms`."""
        handle: ClaimHandle = occurrence.handle
        item = handle.item
        if item.id != handle.item_id or (item.topic != OCCURRENCE and not occurrence.redelivered):
            return Next(handle.item_id, due_ms)
        if item.topic == OCCURRENCE:
            return Next(item.id, due_ms, item.body, OCCURRENCE, (run_ref(occurrence.job_id), WAITING), item.route)
        refs = (*without_lost(item.refs), lost_ref(to_ms(occurrence.scheduled)))
        return Next(item.id, due_ms, item.body, JOB, refs, item.route, handle.version)

    def put_back_again(self, occurrence: Occurrence, found: Found, due_ms: int | None) -> Settlement:
        """Do what `put_back` does, for a job whose record another process has replaced. The new record stays."""
        occurrence.handle.version = found.version
        refs = (*without_lost(found.refs), lost_ref(to_ms(occurrence.scheduled)))
        return Next(found.id, due_ms, found.body, JOB, refs, found.route, found.version)

    def split_item(
        self, job_id: str, run_ms: int, run_times: Sequence[datetime], body: bytes, *, due_ms: int | None
    ) -> Item:
        """Make a split item: an item in which a run of a job is stored. `body`: the job as the codec has written it."""
        item_id = split_item_id(job_id, run_ms)
        times = ",".join(str(to_us(moment)) for moment in run_times).encode()
        # in the shard of the job, so that its fencing tokens keep growing
        route = job_id if self._shards > 1 else None
        sealed = self._codec.seal(item_id, b"%s|%s" % (times, body))
        return Item(item_id, due_ms, sealed, OCCURRENCE, (run_ref(job_id),), route)


class PendingSettlement(NamedTuple):
    """The settlement of one item. The next round trip sends it.

    Args:
        shard, claim_number: name the claim of the item.
        settlement: what becomes of the item.
        occurrence: the run that has ended, was put back or was split. Defaults to None: the item did not become a run.
        split: whether the run continues in an item of its own, a split item. Defaults to False.
    """

    shard: int
    claim_number: int
    settlement: Settlement
    occurrence: Occurrence | None = None
    split: bool = False


class PendingCommand(NamedTuple):
    """A call for the next round trip, the entries that it is about, and the handler of its answer."""

    call: Call[Any]
    about: Sequence[Any] = ()
    answered: Callable[[Any, Sequence[Any]], None] | None = None  # None: the answer changes nothing in this process


def commands_of(
    entries: Mapping[Key, list[Entry]],
    call_of: Callable[[Key, list[Entry]], Call[Any]],
    answered: Callable[[Any, Sequence[Any]], None] | None = None,
) -> list[PendingCommand]:
    """Make commands for many entries, with at most `MAX_BATCH` entries in each.

    Args:
        entries: grouped by their shard, or by their shard and claim.
        call_of: makes the call for one batch.
        answered: called with the answer to a call, and the entries of that call. Defaults to None: ignore the answer.
    """
    return [
        PendingCommand(call_of(key, batch), batch, answered)
        for key, listed in entries.items()
        for batch in (listed[at : at + MAX_BATCH] for at in range(0, len(listed), MAX_BATCH))
    ]
