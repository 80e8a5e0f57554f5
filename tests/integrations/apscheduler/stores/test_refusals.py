"""A process gives a job that it cannot run back to the store. A job that no process can run is quarantined."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Producer
from wheel_sched_apscheduler.occurrence import Finish
from wheel_sched_apscheduler.run_times import missed_runs

from wheel_sched.store import Item

NOW = datetime.now(UTC).replace(microsecond=0)
MOVED = "release.two:send"


def send(*_: Any) -> None:
    """A function that only the new release has."""


@pytest.fixture
def new_job(make_job: Any) -> Any:
    """A job of the new release, due now and every minute. The old release cannot import its function."""
    trigger = IntervalTrigger(seconds=60, start_date=NOW, timezone="UTC")
    return make_job(NOW, id="j", func=send, trigger=trigger, misfire_grace_time=3600)


def name_elsewhere(store: Any) -> None:
    """Change the stored job, so that it names a function that only some processes have."""
    found = store.store.get(["j"])[0]
    ref = f"{send.__module__}:send"
    body = found.body.replace(ref.encode(), MOVED.encode())
    assert body != found.body
    store.store.replace(type(found.item())("j", 0, body, found.topic, found.refs), keep_due=True)


def aliases() -> dict[str, str]:
    """The aliases of a process with the new release. They map `MOVED` to the function `send`."""
    return {MOVED: f"{send.__module__}:send"}


def test_what_one_process_lacks_runs_in_another(open_fake: Any, new_job: Any) -> None:
    """A process without the job's function gives the job back and marks it with refs. The next run, in another process,
    removes the refs. The wait does not count as lateness."""
    old, new = open_fake(), open_fake(aliases=aliases(), misfire="claim")
    old.add_job(new_job)
    old.set_tags("j", ["t"])
    name_elsewhere(old)
    for times in (1, 2):
        before_ms = old.store.now_ms()
        assert old.claim_batch(NOW).occurrences == []
        old.tracker.flush()
        entry = old.get_entry("j")
        assert (entry.state, entry.tags) == ("scheduled", ("t",))
        assert f"given back {times} time" in entry.reason
        assert "release" in entry.reason
        assert old.store.find("refused") == ["j"]
        assert before_ms < old.store.get(["j"])[0].score_ms <= old.store.now_ms() + 5_000
        old.store.reschedule(["j"], 0)  # as if it had waited
    later = NOW + timedelta(hours=2)
    (occurrence,) = new.claim_batch(later).occurrences
    assert (occurrence.job_id, occurrence.scheduled, occurrence.job.misfire_grace_time) == ("j", NOW, None)
    run_times, following = missed_runs(occurrence.job, later)
    occurrence.run_at(run_times)
    occurrence.plan(following)
    new.mark_submitted([occurrence])
    new.finish(occurrence, Finish.EXECUTED)
    new.tracker.flush()
    entry = old.get_entry("j")
    assert (entry.next_run_time, entry.reason, entry.tags) == (later + timedelta(seconds=60), "", ("t",))
    assert old.store.find("refused") == []


@pytest.mark.parametrize("lacking", ["function", "executor"])
def test_an_idle_process_tells_what_it_refuses_at_once(
    open_fake: Any, make_job: Any, new_job: Any, lacking: str
) -> None:
    """A process has claimed a job whose function or executor it lacks. An idle process gives the job back to the store
    at once, not with its next heartbeat. Before that, no other process can run the job."""
    idle = open_fake()
    idle.start(None, "default")
    idle.add_job(new_job if lacking == "function" else make_job(NOW, id="j", executor="elsewhere"))
    if lacking == "function":
        name_elsewhere(idle)
    for job in idle.get_due_jobs(NOW):
        idle.remove_job(job.id)
    idle.get_next_run_time()
    until_s = time.monotonic() + 2
    while idle.get_entry("j").state != "scheduled":
        assert time.monotonic() < until_s, "the job was not given back"
        time.sleep(0.002)  # the settler thread makes it true, without a signal


def test_an_idle_process_reads_a_job_that_was_replaced_at_once(open_fake: Any, make_job: Any) -> None:
    """The store refuses the settlement of a job that was replaced. The settler thread reads the new job at once,
    without another pass."""
    idle, other = open_fake(), open_fake()
    idle.start(None, "default")
    idle._pass_until_s = time.monotonic() + 3600  # as if a pass came soon: the settler leaves the report to it
    trigger = IntervalTrigger(seconds=60, start_date=NOW, timezone="UTC")
    idle.add_job(make_job(NOW, id="j", trigger=trigger))
    (occurrence,) = idle.claim_batch(NOW).occurrences
    occurrence.run_at([NOW])
    occurrence.plan(NOW + timedelta(seconds=60))
    other.repository.change(
        "j", lambda found: type(found.item())("j", None, found.body, "job", found.refs), keep_due=True
    )
    idle.tracker.finish(occurrence, Finish.EXECUTED)
    assert idle.claim_batch(NOW).occurrences == []
    idle._pass_until_s = 0.0
    until_s = time.monotonic() + 2
    while idle.get_entry("j").state != "scheduled":
        assert time.monotonic() < until_s, "it was not told"
        time.sleep(0.002)  # the settler thread makes it true, without a signal


def test_an_executor_that_only_others_have(open_fake: Any, make_job: Any) -> None:
    """A scheduler without the job's executor gives the job back."""
    store = open_fake()
    store.add_job(make_job(NOW, id="j", executor="elsewhere"))
    (job,) = store.get_due_jobs(NOW)
    store.remove_job(job.id)
    store.get_next_run_time()
    store.tracker.flush()
    entry = store.get_entry("j")
    assert entry.state == "scheduled"
    assert "no executor 'elsewhere'" in entry.reason
    assert store.in_flight() == []


def test_a_stock_scheduler_is_not_given_what_it_has_no_executor_for(
    open_fake: Any, make_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A stock scheduler would log that it removes the job. So the jobstore gives the job back instead."""
    store = open_fake()
    scheduler = BackgroundScheduler(timezone="UTC", executors={"default": ThreadPoolExecutor(1)})
    store.start(scheduler, "default")
    for name in ("elsewhere", "default"):
        store.add_job(make_job(NOW, id=name, executor=name))
    assert [job.id for job in store.get_due_jobs(NOW)] == ["default"]
    store.get_next_run_time()
    store.tracker.flush()
    assert "no executor 'elsewhere'" in store.get_entry("elsewhere").reason
    assert "given back" in caplog.text


def test_what_nobody_can_run_is_quarantined_after_a_while(open_fake: Any, new_job: Any) -> None:
    """The quarantine needs enough rounds of refusals and enough time. The job can be released from it."""
    store = open_fake(quarantine_refusals=3, quarantine_after_s=60)
    store.add_job(new_job)
    name_elsewhere(store)
    for _ in range(4):
        assert store.claim_batch(NOW).occurrences == []
        store.tracker.flush()
        store.store.reschedule(["j"], 0)  # as if it had waited
    assert store.count("quarantined") == 0
    store.tracker.refusals.after_ms = 0  # as if a minute had passed
    assert store.claim_batch(NOW).occurrences == []
    store.tracker.flush()
    (entry,) = store.quarantined()
    assert "refused 5 times" in entry.reason
    assert "release" in entry.reason
    assert store.release_quarantined(["j"]) == ["j"]
    new = open_fake(aliases=aliases())
    assert [occurrence.job_id for occurrence in new.claim_batch(NOW).occurrences] == ["j"]


def test_a_round_ends_with_a_process_that_has_refused_before(open_fake: Any, new_job: Any) -> None:
    """Each process may refuse the job once in a round. Until one of them refuses again, nothing delays the job."""
    olds = [open_fake(quarantine_refusals=2, quarantine_after_s=0) for _ in range(5)]
    olds[0].add_job(new_job)
    name_elsewhere(olds[0])
    for old in olds:
        assert old.claim_batch(NOW).occurrences == []
        old.tracker.flush()
        entry = old.get_entry("j")
        assert (entry.state, "given back 1 time " in entry.reason) == ("scheduled", True)
        assert old.store.get(["j"])[0].score_ms <= old.store.now_ms() + 100
        old.store.reschedule(["j"], 0)  # as if it had waited
    assert olds[2].claim_batch(NOW).occurrences == []
    olds[2].tracker.flush()
    (entry,) = olds[2].quarantined()
    assert "refused 2 times" in entry.reason


def test_processes_that_come_and_go_make_rounds_too(open_fake: Any, new_job: Any) -> None:
    """If all processes of a round have ended, none of them can refuse again. So a round also ends after ten
    processes."""
    store = open_fake()
    store.add_job(new_job)
    name_elsewhere(store)
    for number in range(21):
        store.tracker.refusals.process_mark = f"{number:06}"
        assert store.claim_batch(NOW).occurrences == []
        store.tracker.flush()
        assert f"given back {number // 10 + 1} time" in store.get_entry("j").reason
        store.store.reschedule(["j"], 0)


def test_who_has_refused_something_comes_later_than_the_others(open_fake: Any, new_job: Any) -> None:
    """A process that refused a job leaves it to a process that can run it. After a minute it claims other jobs as early
    as before."""
    old, new = open_fake(), open_fake(aliases=aliases())
    old.add_job(new_job)
    name_elsewhere(old)
    assert old.claim_batch(NOW).occurrences == []
    old.tracker.flush()
    before = datetime.fromtimestamp(0, UTC)  # nothing is due then
    first, later = new.claim_batch(before).wake_at, old.claim_batch(before).wake_at
    assert later - first >= timedelta(milliseconds=190)
    old.tracker.refusals.clock = lambda: time.monotonic() + 61  # as if a minute had passed
    assert old.claim_batch(before).wake_at - first >= timedelta(milliseconds=190)  # the only job is the refused one
    Producer(old, timezone="UTC").add_job(send, "date", run_date=NOW, id="other")
    assert old.claim_batch(before).wake_at < first


def test_a_job_that_nobody_can_run_holds_up_no_other_for_long(open_fake: Any, new_job: Any) -> None:
    """After three rounds of refusals probably no process can run the job. Then its refusal no longer delays other
    jobs."""
    store = open_fake()
    store.add_job(new_job)
    name_elsewhere(store)
    for number in range(5):
        store.tracker.refusals.clock = lambda number=number: time.monotonic() + 61 * number  # a minute later
        assert store.claim_batch(NOW).occurrences == []
        assert (store.tracker.refusals.deferral_ms([]) > 0) == (number < 3)
        store.tracker.flush()
        store.store.reschedule(["j"], 0)  # as if it had waited


def test_what_no_process_can_read_is_quarantined_at_once(open_fake: Any, new_job: Any) -> None:
    """A job that one process cannot read is unreadable for every process. So it is quarantined at its first claim."""
    store = open_fake()
    store.add_job(new_job)
    found = store.store.get(["j"])[0]
    store.store.replace(type(found.item())("j", 0, b"no job", found.topic), keep_due=True)
    assert store.claim_batch(NOW).occurrences == []
    store.tracker.flush()
    assert [entry.id for entry in store.quarantined()] == ["j"]


def test_a_wrong_limit_is_named(open_fake: Any) -> None:
    """One error names all quarantine settings that are out of range."""
    from wheel_sched.errors import ConfigError

    with pytest.raises(ConfigError, match=r"(?s)quarantine_refusals.*quarantine_after_s"):
        open_fake(quarantine_refusals=0, quarantine_after_s=-1)


@pytest.mark.parametrize(
    "mark", ["refused:-5:0:p:x", f"refused:{10**200}:0:p:x", f"refused:1:{10**200}:p:x", f"refused:0:-{10**200}:p:x"]
)
@pytest.mark.parametrize("settings", [{"secret": "a" * 20}, {}])
def test_a_forged_mark_stops_no_batch(open_fake: Any, make_job: Any, mark: str, settings: dict[str, Any]) -> None:
    """Refs are not signed. A forged ref may hold any number: the item is given back, and the other items run."""
    store = open_fake(**settings)
    now_ms = store.store.now_ms()
    forged = Item("evil", 0, b"1;0;;{}" if settings else b"2;0;;{}", "job", ("refused", mark))
    store.store.schedule([forged])
    store.add_job(make_job(NOW, id="good"))
    assert [occurrence.job_id for occurrence in store.claim_batch(NOW).occurrences] == ["good"]
    store.tracker.flush()
    found = store.store.get(["evil"])[0]
    assert found.state in ("due", "held")
    if found.state == "due":
        assert now_ms < found.score_ms <= now_ms + 60_000


def test_an_item_that_cannot_even_be_refused_keeps_its_lease(
    open_fake: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal of an unreadable item raises. The item is due again when its lease ends. The other jobs of the batch
    run, and the log has the error."""
    store = open_fake()
    store.store.schedule([Item("evil", 0, b"no job", "job")])
    store.add_job(make_job(NOW, id="good"))

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of the refusal")

    monkeypatch.setattr(store.tracker.refusals, "settlement", fail)
    assert [occurrence.job_id for occurrence in store.claim_batch(NOW).occurrences] == ["good"]
    assert "'evil'" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_reason_is_one_line_of_plain_text(open_fake: Any, make_job: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The reason why a job is refused quotes stored data, and escapes it.

    A server cannot store half of a surrogate pair. A line break could forge a line of the log.
    """
    store = open_fake(quarantine_refusals=1, quarantine_after_s=0)
    store.start(None, "default")
    trigger = IntervalTrigger(seconds=1, start_date=NOW, timezone="UTC")
    store.add_job(make_job(NOW, id="evil", trigger=trigger))
    found = store.store.get(["evil"])[0]
    body = found.body.replace(b'"utc+0",null', rb'"zoneinfo:../\ud800\nforged\u001b[31m",null')
    assert body != found.body
    store.store.replace(type(found.item())("evil", 0, body, found.topic), keep_due=True)
    assert store.claim_batch(NOW).occurrences == []
    store.tracker.flush()
    (entry,) = store.quarantined()
    for text in (entry.reason, caplog.records[-1].getMessage()):
        assert text.isprintable()
        assert "\\nforged" in text
    assert not [line for line in caplog.text.splitlines() if line.startswith("forged")]
