"""`wheel-sched aps` on a real server, and the migration of jobs from and to stock jobstores."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dateutil.tz
import pytest
import redis
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Finish, RedisWheelJobStore
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.migration import open_stock, read_stock

from wheel_sched.errors import ConfigError, StoreError
from wheel_sched.store import Item

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

pytestmark = pytest.mark.real

OLD = datetime(2016, 5, 3, tzinfo=UTC)
FAR = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture
def aps(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a `wheel-sched aps` command in this process, and checks its exit code."""
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "NAMESPACE", "SHARDS", "DURABILITY", "CONFIG", "APS_SECRET"):
        monkeypatch.delenv(f"WHEEL_SCHED_{name}", raising=False)

    def run(*args: str, code: int = 0, store: str = redis_url) -> Result:
        from click.testing import CliRunner

        from wheel_sched.cli.program import cli

        result = CliRunner().invoke(cli, ["--store", store, "aps", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def store(redis_url: str) -> Any:
    """The jobstore that the commands open. The test uses it to add jobs and to check them."""
    made = RedisWheelJobStore(redis_url, quarantine_refusals=1, quarantine_after_s=0)
    yield made
    made.shutdown()


@pytest.fixture
def trusting_store(redis_url: str, make_job: Any) -> Any:
    """The store that the commands open, with an allow-list: it may run unsigned jobs that another process added."""
    made = RedisWheelJobStore(redis_url, allow=[make_job(FAR).func.__module__])
    yield made
    made.shutdown()


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def rename(store: Any, job_id: str, ref: str) -> None:
    from dataclasses import replace

    found = store.store.get([job_id])[0]
    old = store.codec.head(job_id, found.body).func
    store.store.replace(replace(found.item(), body=found.body.replace(old.encode(), ref.encode())), keep_due=True)


def test_jobs_are_listed_and_shown(aps: Any, store: Any, make_job: Any) -> None:
    """`list` prints all jobs, or only the jobs in a state or with a tag. `show` prints one job. Both print text or
    JSON."""
    hourly = IntervalTrigger(hours=1, start_date=FAR, timezone="UTC")
    store.add_jobs([make_job(FAR, id="hourly", trigger=hourly, args=(5,))], metadata={"m": 1}, tags=["t"])
    store.add_job(make_job(None, id="paused"))
    text = aps("list").stdout
    assert "hourly" in text
    assert "interval[1:00:00]" in text
    assert [row["id"] for row in objects(aps("list", "--json"))] == ["hourly", "paused"]
    assert [row["id"] for row in objects(aps("list", "--state", "paused", "--json"))] == ["paused"]
    assert [row["id"] for row in objects(aps("list", "--tag", "t", "--json"))] == ["hourly"]
    assert "the first 1 are shown" in aps("list", "--limit", "1").stderr
    (shown,) = objects(aps("show", "hourly", "--json"))
    assert (shown["args"], shown["metadata"], shown["tags"], shown["next_run_time"]) == (
        [5],
        {"m": 1},
        ["t"],
        FAR.isoformat(),
    )
    assert "interval[1:00:00]" in aps("show", "hourly").stdout
    assert "there is no job 'nobody'" in aps("show", "nobody", code=1).stderr


def test_an_absent_namespace_is_told_with_what_makes_a_job_store(aps: Any) -> None:
    """A command on an absent namespace fails. The error says what creates a jobstore, and does not name `wheel-sched
    publish`, which creates none."""
    error_text = aps("list", code=1).stderr
    assert "or create it with a scheduler with this job store, or run `wheel-sched aps migrate`" in error_text
    assert "wheel-sched publish" not in error_text


def test_jobs_are_changed_by_id(aps: Any, store: Any, make_job: Any) -> None:
    """`pause`, `resume`, `run-now` and `delete` print one line for each job. An unknown id is an error."""
    store.add_job(make_job(FAR, id="a", trigger=IntervalTrigger(hours=1, start_date=FAR, timezone="UTC")))
    assert "a: paused" in aps("pause", "a").stderr
    assert store.get_entry("a").state == "paused"
    assert "next run 2040-01-01" in aps("resume", "a").stderr
    assert "due now" in aps("run-now", "a").stderr
    assert store.get_entry("a").next_run_time < FAR
    assert objects(aps("pause", "nobody", "--json", code=1)) == [
        {"id": "nobody", "found": False, "done": "there is no such job"}
    ]
    assert "there is no terminal to answer on" in aps("delete", "a", code=2).stderr
    assert "a: deleted" in aps("delete", "a", "--yes").stderr
    assert store.count() == 0


@pytest.mark.parametrize(
    "command",
    [
        ("pause", "a", "b"),
        ("resume", "a", "b"),
        ("run-now", "a", "b"),
        ("release", "a", "b"),
        ("repoint", "old", "new"),
    ],
)
def test_what_changes_several_jobs_asks_first(
    aps: Any, store: Any, make_job: Any, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal the command names the number of jobs, demands --yes and changes nothing."""
    for name in ("a", "b"):
        store.add_job(make_job(FAR, id=name))

    def repoint(*_: object, dry_run: bool = False) -> list[str]:
        assert dry_run
        return ["a", "b"]

    monkeypatch.setattr(RedisWheelJobStore, "repoint", repoint)
    error_text = aps(*command, code=2).stderr
    assert "2 jobs" in error_text
    assert "add --yes" in error_text
    assert {store.get_entry(name).state for name in ("a", "b")} == {"scheduled"}
    if command[0] not in ("release", "repoint"):
        aps(*command, "--yes")


def test_quarantined_jobs_are_listed_released_and_repointed(aps: Any, store: Any, make_job: Any) -> None:
    """Quarantined jobs can be listed, released and given another function. The commands do not import the code of the
    jobs."""
    store.add_job(make_job(OLD, id="a"))
    good = store.get_entry("a").func
    rename(store, "a", "gone.away:f")
    assert store.get_due_jobs(OLD) == []
    store.get_next_run_time()
    store.tracker.flush()
    assert "may not be named by a job that is not signed" in aps("list", "--state", "quarantined").stdout
    (row,) = objects(aps("list", "--state", "quarantined", "--json"))
    assert (row["id"], row["func"]) == ("a", "gone.away:f")
    assert "1 job would now name" in aps("repoint", "gone.away:f", good, "--dry-run").stderr
    assert "allow-list" in aps("repoint", "gone.away:f", "os:system", code=1).stderr
    assert objects(aps("release", "--all", "--json")) == [{"asked": ["a"], "released": ["a"]}]
    store.get_due_jobs(OLD)
    store.get_next_run_time()
    store.tracker.flush()
    assert "1 job now name" in aps("repoint", "gone.away:f", good).stderr
    assert "no jobs that match" in aps("list", "--state", "quarantined").stderr
    assert [job.id for job in store.get_due_jobs(OLD)] == ["a"]
    assert "Which?" in aps("release", code=2).stderr


def test_what_ran_and_what_runs_are_told(aps: Any, store: Any, make_job: Any) -> None:
    """`history` shows runs that have ended, and `in-flight` shows runs that have not."""
    assert aps("history", code=1).stderr  # no namespace yet: an error, not an empty list
    store.add_job(make_job(OLD, id="a"))
    assert "no runs are on record" in aps("history").stderr
    assert "nothing is in flight" in aps("in-flight").stderr
    (job,) = store.get_due_jobs(OLD)
    job._get_run_times(OLD)
    store.remove_job("a")
    store.get_next_run_time()
    assert "a" in aps("in-flight").stdout
    assert objects(aps("in-flight", "--json"))[0]["job_id"] == "a"
    store.finish(job.occurrence, Finish.ERROR, "ValueError('x')")
    store.tracker.history.closing = True
    store.tracker.flush()
    assert "ValueError('x')" in aps("history").stdout
    assert objects(aps("history", "a", "--json"))[0]["outcome"] == "error"


def test_a_signed_store_takes_the_secret_from_the_environment(
    aps: Any, redis_url: str, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing needs no secret. A command that changes a job needs the secret."""
    secret = "a secret of some length"
    store = RedisWheelJobStore(redis_url, secret=secret)
    store.add_job(make_job(FAR, id="a"))
    assert "a" in aps("list").stdout
    monkeypatch.setenv("WHEEL_SCHED_APS_SECRET", secret)
    aps("run-now", "a")
    assert store.lookup_job("a").next_run_time < FAR
    store.shutdown()


def stock_jobs(stock: Any, make_job: Any) -> None:
    zone = CronTrigger(hour=3, day_of_week="mon-fri", timezone="Europe/Berlin")
    stock.add_job(make_job(FAR, id="date", args=(1, "x"), kwargs={"k": [1, (2, 3)]}))
    stock.add_job(make_job(FAR, id="cron", trigger=zone, misfire_grace_time=9, max_instances=3))
    stock.add_job(make_job(None, id="paused", trigger=IntervalTrigger(seconds=5, timezone="UTC")))
    for number in range(20):
        stock.add_job(make_job(FAR + timedelta(seconds=number), id=f"n{number}"))


@pytest.mark.parametrize("kind", ["redis", "sql"])
def test_jobs_of_a_stock_store_come_over_and_go_back(
    aps: Any, trusting_store: Any, make_job: Any, kind: str, redis_url: str, tmp_path: Path
) -> None:
    """`migrate` copies the jobs of a stock jobstore: as a dry run, then really, then again without effect. `export`
    copies the jobs to a stock jobstore."""
    url, back_url = f"sqlite:///{tmp_path}/jobs.sqlite", f"sqlite:///{tmp_path}/back.sqlite"
    stock: Any = SQLAlchemyJobStore(url)
    if kind == "redis":
        url = back_url = redis_url
        stock = RedisJobStore()
        stock.redis = redis.Redis.from_url(redis_url)
    stock.start(BackgroundScheduler(), "old")
    stock_jobs(stock, make_job)
    assert objects(aps("migrate", "--from", url, "--dry-run", "--json")) == [
        {"dry_run": True, "found": 23, "copied": 23, "existing": [], "failed": {}}
    ]
    assert "23 jobs of 23 copied and verified" in aps("migrate", "--from", url).stderr
    assert objects(aps("migrate", "--from", url, "--json"))[0]["copied"] == 0
    old, new = stock.get_all_jobs(), trusting_store.get_all_jobs()
    assert [job.id for job in new if job.next_run_time] == sorted(
        (job.id for job in old if job.next_run_time),
        key=lambda job_id: (trusting_store.lookup_job(job_id).next_run_time, job_id),
    )
    for job in old:
        found = trusting_store.lookup_job(job.id)
        for name in ("func", "args", "kwargs", "misfire_grace_time", "max_instances", "next_run_time", "name"):
            assert getattr(found, name) == getattr(job, name), name
        assert repr(found.trigger) == repr(job.trigger)
    stock.shutdown()

    keys = ["--jobs-key", "back.jobs", "--run-times-key", "back.times"] if kind == "redis" else []
    assert objects(aps("export", "--to", back_url, *keys, "--dry-run", "--json"))[0]["copied"] == 23
    assert objects(aps("export", "--to", back_url, *keys, "--json"))[0]["copied"] == 23
    assert len(objects(aps("export", "--to", back_url, *keys, "--json"))[0]["existing"]) == 23
    again: Any = None if kind == "redis" else SQLAlchemyJobStore(back_url)
    if kind == "redis":
        again = RedisJobStore(jobs_key="back.jobs", run_times_key="back.times")
        again.redis = redis.Redis.from_url(redis_url)
    again.start(BackgroundScheduler(), "back")
    assert {job.id: (repr(job.trigger), job.args) for job in again.get_all_jobs()} == {
        job.id: (repr(job.trigger), job.args) for job in old
    }
    assert again.get_next_run_time() == min(job.next_run_time for job in old if job.next_run_time)
    again.shutdown()


class Evil:
    """An object that an attacker could put into an old jobstore."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('ran')",)


def test_a_pickle_that_would_run_code_is_refused(make_job: Any) -> None:
    """The pickle names an object that is neither a trigger nor plain data. The name is never imported."""
    state = {**make_job(FAR, id="a").__getstate__(), "args": (Evil(),)}
    with pytest.raises(StoreError, match="builtins:exec"):
        read_stock("a", pickle.dumps(state))
    with pytest.raises(StoreError, match="cannot be read"):
        read_stock("a", b"nonsense")
    with pytest.raises(StoreError, match="cannot be read"):
        read_stock("a", pickle.dumps([1, 2]))


def test_a_job_that_cannot_come_over_is_named(aps: Any, redis_url: str, make_job: Any) -> None:
    """`migrate` refuses one of two jobs. The output names it, the other job is copied, and the exit code is 1."""
    client = redis.Redis.from_url(redis_url)
    state = {**make_job(FAR, id="evil").__getstate__(), "args": (Evil(),)}
    client.hset("apscheduler.jobs", "evil", pickle.dumps(state))
    client.hset("apscheduler.jobs", "good", pickle.dumps(make_job(FAR, id="good").__getstate__()))
    (report,) = objects(aps("migrate", "--from", redis_url, "--json", code=1))
    assert (report["found"], report["copied"], list(report["failed"])) == (2, 1, ["evil"])
    client.close()


class Money:
    """An argument of a user's class."""


def test_what_the_refusal_of_a_class_advises_works(aps: Any, redis_url: str, make_job: Any) -> None:
    """A job has an argument of a user's class. The error advises --allow-class and --allow-pickle, and with both
    options the job is copied."""
    client = redis.Redis.from_url(redis_url)
    job = make_job(FAR, id="a", args=(Money(),))
    client.hset("apscheduler.jobs", "a", pickle.dumps(job.__getstate__()))
    client.close()
    money = f"{__name__}:Money"
    (report,) = objects(aps("migrate", "--from", redis_url, "--dry-run", "--json", code=1))
    assert f"--allow-class {money}" in report["failed"]["a"]
    assert "--allow-pickle" in report["failed"]["a"]
    (report,) = objects(aps("migrate", "--from", redis_url, "--allow-class", money, "--dry-run", "--json", code=1))
    assert "this command does so with --allow-pickle" in report["failed"]["a"]
    options = ["--allow-class", money, "--allow-pickle", "--allow", "tests"]
    for dry_run in (["--dry-run"], []):
        (report,) = objects(aps("migrate", "--from", redis_url, *options, *dry_run, "--json"))
        assert (report["copied"], report["failed"]) == (1, {})
    assert "cannot be imported" in aps("migrate", "--from", redis_url, "--allow-class", "no.such:Class", code=2).stderr


def test_a_zone_of_dateutil_comes_over(make_job: Any) -> None:
    """A job whose run date has a dateutil zone can be migrated. Flask-APScheduler makes such a job from a POST
    request."""
    moment = FAR.astimezone(dateutil.tz.tzoffset(None, 5400))
    job = make_job(moment, id="a", trigger=DateTrigger(moment))
    back = read_stock("a", pickle.dumps(job.__getstate__()))
    assert JobCodec().head("a", JobCodec(allow=["tests"]).encode(back)).next_run_time == FAR


def test_a_wrong_source_is_named() -> None:
    """A source URL that is neither Redis nor SQL is an error."""
    with pytest.raises(ConfigError):
        open_stock("nonsense")


def test_commands_on_a_damaged_record_say_what_to_do(aps: Any, store: Any, make_job: Any) -> None:
    """For a damaged record, a command prints one line that says what to do. It still changes the other jobs."""
    store.add_job(make_job(FAR, id="whole"))
    store.store.schedule([Item("torn job", None, b"no job", "job")])
    for command in ("pause", "run-now", "resume"):
        result = aps(command, "torn job", "whole", "--yes", code=1)
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("torn job: ")]
        assert "its record is damaged" in line
        assert "nothing was changed; `wheel-sched aps delete 'torn job'` deletes it" in line
        assert "whole: " in result.stderr
    aps("delete", "torn job", "--yes")
    assert store.get_entry("torn job") is None
