"""Migration: copies jobs from a stock store and back. `migrate` reads each copy again to verify it.

Stock stores hold pickles. An unpickler that makes only APScheduler's triggers, dates, zones and plain data reads them;
it refuses every other name, except the classes that the caller allows. So a migration runs no other code, even if
attackers could write to the old store. It copies the name of a job's function, and does not import the function.
"""

from __future__ import annotations

import contextlib
import io
import pickle  # only `_Unpickler` reads pickles; `export` writes them, because stock stores hold pickles
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from apscheduler.job import Job
from apscheduler.util import ref_to_obj

from wheel_sched.errors import ConfigError, StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.redacting import redacted
from wheel_sched_apscheduler.codec import JobCodec, NotSerializable
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

_PAGE = 500
_PLAIN = {
    "builtins": {"set", "frozenset", "bytearray", "complex", "list", "dict", "tuple"},
    "collections": {"OrderedDict"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "uuid": {"UUID", "SafeUUID"},
    "zoneinfo": {"ZoneInfo"},
    "pytz": {"_UTC", "_p", "utc"},
    "dateutil.tz.tz": {"tzutc", "tzoffset"},
    "apscheduler.triggers.date": {"DateTrigger"},
    "apscheduler.triggers.interval": {"IntervalTrigger"},
    "apscheduler.triggers.cron": {"CronTrigger"},
    "apscheduler.triggers.calendarinterval": {"CalendarIntervalTrigger"},
    "apscheduler.triggers.combining": {"AndTrigger", "OrTrigger"},
    "apscheduler.triggers.cron.fields": {"BaseField", "WeekField", "DayOfMonthField", "DayOfWeekField", "MonthField"},
    "apscheduler.triggers.cron.expressions": {
        "AllExpression",
        "RangeExpression",
        "WeekdayRangeExpression",
        "WeekdayPositionExpression",
        "LastDayOfMonthExpression",
        "MonthRangeExpression",
    },
    "copyreg": {"_reconstructor"},
}


@dataclass(slots=True)
class MigrationReport:
    """What a migration did.

    Args:
        found: number of jobs in the source.
        copied: number of jobs that were written; `migrate` also verifies them. In a dry run: number of jobs that can be
            written, also if the target has their ids.
        existing: ids that the target already has; those jobs were not copied. Empty in a dry run.
        failed: id -> why the job cannot be copied, or why its copy could not be verified.
    """

    found: int = 0
    copied: int = 0
    existing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class Stock(Protocol):
    """A stock store's table: ids, next run times and pickles."""

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Every job's id and pickle."""
        ...

    def put(self, job_id: str, moment: datetime | None, state: bytes) -> bool:
        """Add a job with its next run time (None = paused) and its pickle. Returns False if the id exists."""
        ...


def open_stock(
    url: str,
    *,
    jobs_key: str = "apscheduler.jobs",
    run_times_key: str = "apscheduler.run_times",
    table: str = "apscheduler_jobs",
) -> Stock:
    """Open a stock store. A URL redis://, rediss:// or unix:// means a RedisJobStore, any other an SQLAlchemyJobStore.

    Raises:
        ConfigError: the URL is wrong, or a library for an SQL store is missing.
    """
    if url.startswith(("redis://", "rediss://", "unix://")):
        return StockRedis(url, jobs_key, run_times_key)
    try:
        return StockSql(url, table)
    except ImportError as error:
        raise ConfigError(f"reading {url.partition(':')[0]} needs SQLAlchemy: pip install sqlalchemy") from error


class StockRedis:
    """Reads and writes jobs as APScheduler's RedisJobStore stores them."""

    def __init__(self, url: str, jobs_key: str, run_times_key: str) -> None:
        from wheel_sched.store.redis.backend import client_for

        self._client: Any = client_for(url)
        self._jobs_key, self._run_times_key = jobs_key, run_times_key

    def rows(self) -> Iterator[tuple[str, bytes]]:
        with _translated():
            for job_id, state in self._client.hscan_iter(self._jobs_key, count=_PAGE):
                yield job_id.decode("utf-8", "surrogateescape"), state

    def put(self, job_id: str, moment: datetime | None, state: bytes) -> bool:
        with _translated():
            if not self._client.hsetnx(self._jobs_key, job_id, state):
                return False
            if moment is not None:
                self._client.zadd(self._run_times_key, {job_id: moment.timestamp()})
        return True


class StockSql:
    """Reads and writes jobs in the table of APScheduler's SQLAlchemyJobStore."""

    def __init__(self, url: str, table: str) -> None:
        import sqlalchemy as sql
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        self._sql: Any = sql
        try:
            self._engine: Any = sql.create_engine(url)
        except (ArgumentError, NoSuchModuleError, ValueError, TypeError):  # their text may quote the password
            raise ConfigError(f"expected redis://... or an SQLAlchemy URL, got: {redacted(url)!r}") from None
        self._table: Any = sql.Table(
            table,
            sql.MetaData(),
            sql.Column("id", sql.Unicode(191), primary_key=True),
            sql.Column("next_run_time", sql.Float(25), index=True),
            sql.Column("job_state", sql.LargeBinary, nullable=False),
        )

    def rows(self) -> Iterator[tuple[str, bytes]]:
        with _translated(), self._engine.connect() as connection:
            found = connection.execute(self._sql.select(self._table.c.id, self._table.c.job_state)).all()
        for row in found:
            yield row[0], row[1]

    def put(self, job_id: str, moment: datetime | None, state: bytes) -> bool:
        with _translated():
            self._table.create(self._engine, checkfirst=True)
            with self._engine.begin() as connection:
                known = self._sql.select(self._table.c.id).where(self._table.c.id == job_id)
                if connection.execute(known).first() is not None:
                    return False
                stamp = None if moment is None else moment.timestamp()
                connection.execute(self._table.insert().values(id=job_id, next_run_time=stamp, job_state=state))
        return True


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """In this block, raise errors of the stock store's library as `StoreError`."""
    try:
        yield
    except WheelSchedError:
        raise
    except Exception as error:  # the stock store's library has its own errors
        if type(error).__module__.partition(".")[0] in ("redis", "sqlalchemy", "sqlite3"):
            raise StoreUnavailable(f"the stock store cannot be used: {error}; nothing was changed") from error
        raise


class _Unpickler(pickle.Unpickler):
    """Makes triggers and plain data. Refuses any other name before it imports anything."""

    def __init__(self, data: bytes, classes: frozenset[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _zone_maker  # a pickled time zone looks up ZoneInfo._unpickle with `getattr`
        if name in _PLAIN.get(module, ()) or f"{module}:{name}" in self._classes:
            return super().find_class(module, name)
        raise StoreError(
            f"its pickle names {module}:{name}, which is neither a trigger nor plain data; it was not imported; "
            f"if you trust the old store, give --allow-class {module}:{name}; when it is an argument's class, also "
            "--allow-pickle: it is then stored as pickle, and the job runs where allow_pickle=True is set"
        )


def _zone_maker(kind: Any, name: Any) -> Any:
    if kind is ZoneInfo and name == "_unpickle":
        return ZoneInfo._unpickle  # type: ignore[attr-defined]  # what its own pickles name
    raise StoreError(f"its pickle asks for {name!r} of {kind!r}; it was not looked up")


def read_stock(job_id: str, state: bytes, classes: Iterable[str] = ()) -> Any:
    """Read a job from a stock pickle. The job has the name of its function; the function is not imported.

    Raises:
        StoreError: the pickle names something that is not allowed, or is no job.
    """
    try:
        found = _Unpickler(state, frozenset(classes)).load()
        job: Any = Job.__new__(Job)
        job.id = job_id
        job.func, job.func_ref = None, found["func"]
        for name in ("trigger", "executor", "name", "misfire_grace_time", "coalesce", "max_instances", "next_run_time"):
            setattr(job, name, found[name])
        job.args, job.kwargs = tuple(found["args"]), dict(found["kwargs"])
    except WheelSchedError:
        raise
    except Exception as error:  # a pickle may fail in any way
        raise StoreError(f"its pickle cannot be read: {error!r}") from error
    return job


def trigger_classes(classes: Iterable[str]) -> list[type]:
    """Import these classes, given as "module:name", and return those that are triggers.

    Raises:
        ConfigError: one of them cannot be imported.
    """
    found: list[Any] = []
    for reference in classes:
        try:
            found.append(ref_to_obj(reference))
        except Exception as error:  # a module may fail in any way while it is imported
            raise ConfigError(f"the class {reference!r} cannot be imported: {error}; nothing was copied") from error
    return [kind for kind in found if isinstance(kind, type) and hasattr(kind, "get_next_fire_time")]


def migrate(
    stock: Stock, store: RedisWheelJobStore | None, *, classes: Iterable[str] = (), codec: JobCodec | None = None
) -> MigrationReport:
    """Copy every job of a stock store that can be copied. Without `store`, only check what could be copied.

    Args:
        stock: see `open_stock`; it is not changed.
        store: the store to copy the jobs to; None = copy nothing.
        classes: "module:name" of further classes that the pickles may hold. Defaults to none.
        codec: if `store` is None, the codec with which to check the jobs. Defaults to None: a store's default codec.

    Raises:
        StoreError: a store does not answer. Repeat the call: it skips jobs that are copied already.
    """
    report = MigrationReport()
    codec = store.codec if store is not None else codec or JobCodec()
    chosen = list(classes)
    batch: list[Any] = []
    for job_id, state in stock.rows():
        report.found += 1
        try:
            job = read_stock(job_id, state, chosen)
            codec.encode(job)
        except WheelSchedError as error:
            text = str(error)
            if isinstance(error, NotSerializable) and "allow_pickle=True" in text:  # the setting of a store
                text += "; this command does so with --allow-pickle"
            report.failed[job_id] = text
            continue
        batch.append(job)
        if len(batch) == _PAGE:
            _copy(batch, store, report)
            batch = []
    _copy(batch, store, report)
    return report


def _copy(jobs: list[Any], store: RedisWheelJobStore | None, report: MigrationReport) -> None:
    if store is None:
        report.copied += len(jobs)
        return
    if not jobs:
        return
    existing = set(store.add_jobs(jobs))
    report.existing += sorted(existing)
    written = [job for job in jobs if job.id not in existing]
    for job, found in zip(written, store.store.get([job.id for job in written]), strict=True):
        if found is not None and found.body == store.codec.encode(job):
            report.copied += 1
        else:
            report.failed[job.id] = "the copy differs from the original or is gone: is a scheduler running?"


def export(store: RedisWheelJobStore, stock: Stock, *, dry_run: bool = False) -> MigrationReport:
    """Copy the jobs back into a stock store. Runs that are stored in items of their own are left out.

    Args:
        store: the store to copy the jobs from; it is not changed.
        stock: see `open_stock`. A job whose id it already has is not copied.
        dry_run: whether to write nothing, and only check which jobs could be copied. Defaults to False.

    Raises:
        StoreError: a store does not answer.
    """
    report = MigrationReport()
    for found in store.repository.records("due", "held", "leased"):
        report.found += 1
        try:
            job = store.codec.decode(found.id, found.body, resolve=False).job
            state = pickle.dumps(job.__getstate__())
        except Exception as error:  # pickle may raise any error about an argument
            report.failed[found.id] = str(error)
            continue
        if dry_run or stock.put(found.id, job.next_run_time, state):
            report.copied += 1
        else:
            report.existing.append(found.id)
    return report
