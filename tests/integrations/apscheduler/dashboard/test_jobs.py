"""The pages about jobs, over a jobstore in memory. Nothing of a stored job is imported or unpickled."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched.store import DelayStore, Item

if TYPE_CHECKING:
    from datetime import datetime

    from wheel_sched_apscheduler import Producer, RedisWheelJobStore

# the type of a fixture of conftest.py, which cannot be imported
Browser = Any
EVIL = '<script>alert("x")</script>&\u202e'


@pytest.fixture
def add(producer: Producer, far: datetime, job: Any) -> Any:
    """Adds a job that does nothing."""

    def add(job_id: str, trigger: Any = "interval", **options: Any) -> str:
        given = {"hours": 1} if trigger == "interval" else {}
        return producer.add_job(job, trigger, id=job_id, next_run_time=far, **{**given, **options})

    return add


def quarantine(jobstore: RedisWheelJobStore, job_id: str, reason: str = "no such function") -> None:
    jobstore.store.hold([job_id], f"quarantine: {reason}")


def stored(memory: DelayStore, job_id: str, **changes: Any) -> None:
    """Store a job as another program may have written it."""
    doc = {
        "f": "app:f", "n": "n", "t": ["interval", [[0, 60, 0], [0, "utc+0"], None, "utc+0", None]],
        "a": [], "k": {}, "e": "default", "g": None, "c": True, "m": 1, **changes,
    }  # fmt: skip
    body = b"1;2208988800000000;utc+0;" + json.dumps(doc).encode()
    memory.schedule([Item(job_id, 2_208_988_800_000, body, "job")])


def ids(found: Any) -> list[str]:
    return [job["id"] for job in found["jobs"]]


def test_jobs_are_listed_by_state(browser: Browser, add: Any, jobstore: RedisWheelJobStore) -> None:
    """Each state has its jobs and its count, on the page and in the API alike."""
    for job_id in ("one", "two", "three", "four"):
        add(job_id)
    jobstore.pause("two")
    quarantine(jobstore, "three")
    jobstore.store.reschedule(["four"], 0)
    jobstore.store.claim(10, lease_ms=60_000)
    counts = {"scheduled": 1, "paused": 1, "in_flight": 1, "quarantined": 1, "exact": True}
    for state, job_id in [("scheduled", "one"), ("paused", "two"), ("quarantined", "three"), ("in_flight", "four")]:
        found = browser.call("/jobs", state=state)
        assert (ids(found), found["counts"]) == ([job_id], counts)
        assert f"/jobs/{job_id}" in browser.page("/jobs", state=state)
    assert "no such function" in browser.page("/jobs", state="quarantined")
    assert "aps repoint" in browser.page("/jobs", state="quarantined")
    assert browser.call("/jobs", 400, state="asleep")["error"]["kind"] == "Rejected"


def test_a_trigger_is_shown_in_words(browser: Browser, producer: Producer, job: Any) -> None:
    """The list and the page of a job tell when it runs."""
    producer.add_job(job, "cron", id="nightly", day_of_week="mon-fri", hour=2, minute=30, timezone="Europe/Berlin")
    (found,) = browser.call("/jobs")["jobs"]
    assert found["trigger"] == "at 02:30 on weekdays, Europe/Berlin"
    assert "at 02:30 on weekdays, Europe/Berlin" in browser.page("/jobs")
    page = browser.page("/jobs/nightly")
    assert "at 02:30 on weekdays, Europe/Berlin" in page
    assert page.count('class="chart strip"') == 2
    one = browser.call("/jobs/nightly")
    assert len(one["next_runs_ms"]) == 10
    assert one["next_runs_ms"][0] == one["next_run_ms"]


def test_jobs_are_found_by_text_tag_and_id(browser: Browser, add: Any, producer: Producer) -> None:
    """A search for a text looks at id, function and name."""
    add("Mail-1", tags=["mail"])
    add("bill-1", name="the MAIL bill")
    add("other", tags=["mail", "late"])
    assert sorted(ids(browser.call("/jobs", text="mail"))) == ["Mail-1", "bill-1"]
    assert sorted(ids(browser.call("/jobs", text="do_nothing"))) == ["Mail-1", "bill-1", "other"]
    assert ids(browser.call("/jobs", tag="mail")) == ["Mail-1", "other"]
    assert ids(browser.call("/jobs", tag="mail", text="OTHER")) == ["other"]
    assert ids(browser.call("/jobs", tag="mail", state="paused")) == []
    assert ids(browser.call("/jobs", id="other")) == ["other"]
    assert ids(browser.call("/jobs", id="nobody")) == []
    assert ids(browser.call("/jobs", text="nothing like this")) == []
    assert browser.call("/jobs", 400, tag="two\nlines")["error"]["kind"] == "Rejected"


@pytest.mark.parametrize("search", [{}, {"tag": "t"}, {"text": "do_nothing"}])
def test_a_listing_is_read_page_by_page(browser: Browser, add: Any, search: dict[str, str]) -> None:
    """The pages together have each job once."""
    for number in range(7):
        add(f"job-{number}", tags=["t"])
    seen: list[str] = []
    cursor = None
    while True:
        found = browser.call("/jobs", limit=3, **search, **({"cursor": cursor} if cursor else {}))
        seen += ids(found)
        cursor = found["cursor"]
        if cursor is None:
            break
    assert seen == [f"job-{number}" for number in range(7)]
    assert "Next page" in browser.page("/jobs", limit=3, **search)
    assert browser.call("/jobs", 400, cursor="no cursor")["error"]["kind"] == "Rejected"


def test_a_search_reads_a_bounded_number_of_jobs(
    browser: Browser, memory: DelayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that finds nothing looks at 40 pages and hands back a cursor, however many jobs there are."""
    for start in range(0, 1_000, 500):
        memory.schedule([Item(f"j{start + at}", 2_208_988_800_000, b"1;-;;{}", "job") for at in range(500)])
    calls = []
    execute = type(memory).execute
    monkeypatch.setattr(type(memory), "execute", lambda self, given: calls.extend(given) or execute(self, given))
    found = browser.call("/jobs", text="nothing like this", limit=10)
    assert (ids(found), found["cursor"] is None) == ([], False)
    assert len(calls) < 100
    assert "looks at more jobs" in browser.page("/jobs", text="nothing like this", limit=10)


def test_runs_under_way_name_their_process(browser: Browser, add: Any, jobstore: RedisWheelJobStore) -> None:
    """A run has the end of its lease, and the name of its process if that has announced itself."""
    add("busy")
    jobstore.store.reschedule(["busy"], 0)
    jobstore.store.claim(10, lease_ms=60_000)
    (run,) = browser.call("/jobs/in-flight")["runs"]
    assert (run["job_id"], run["owner"]) == ("busy", None)
    now_ms = jobstore.store.now_ms()
    rows = [["busy:0", "busy", now_ms, 7], ["evil"], 3]
    record = {"owner": f"host:1{EVIL}", "seen_ms": now_ms, "lease_ms": 60_000, "occurrences": rows}
    jobstore.store.schedule([Item("\0w", None, json.dumps(record).encode(), "worker", ("workers",))])
    (run,) = browser.call("/jobs/in-flight")["runs"]
    assert run["owner"].startswith("host:1")
    page = browser.page("/jobs", state="in_flight")
    assert "host:1&lt;script&gt;" in page
    assert "busy:0" in page
    assert "busy:0" in browser.page("/jobs/busy")


def test_showing_runs_changes_nothing(browser: Browser, memory: DelayStore) -> None:
    """The item of a process that has ended stays: a page only reads."""
    record = {"owner": "gone:1", "seen_ms": 1, "lease_ms": 1000, "occurrences": []}
    memory.schedule([Item("\0w", None, json.dumps(record).encode(), "worker", ("workers",))])
    browser.page("/jobs", state="in_flight")
    browser.call("/jobs/in-flight")
    assert memory.get(["\0w"])[0] is not None


def test_texts_of_jobs_cannot_forge_the_page(
    browser: Browser, memory: DelayStore, open_browser: Any, jobstore: RedisWheelJobStore
) -> None:
    """Ids, names, functions, tags, reasons and arguments may contain markup. Every page escapes them."""
    job_id = f"../{EVIL}\n?#/\x1b[31m"
    for each in (job_id, job_id.replace("\n", "")):
        stored(memory, each, f=f"app:{EVIL}", n=EVIL, e=EVIL, a=[EVIL], k={EVIL: EVIL}, x={EVIL: 1})
    stored(memory, "unspeakable", f="app:\ud800", n="\udfff", a=["\ud800", float("nan"), 10**400], x={"\ud800": 1})
    stored(memory, "wrong", t=EVIL, n=3, e=None, f=[EVIL])
    memory.schedule([Item(f"torn{EVIL}", 2_208_988_800_000, EVIL.encode(), "job", (f"tag:{EVIL}",))])
    quarantine(jobstore, f"torn{EVIL}", EVIL)
    shown = open_browser(memory, {"store": "memory:"}, show_payloads=True)
    for visitor in (browser, shown):
        for state in ("scheduled", "quarantined"):
            page = visitor.page("/jobs", state=state)
            assert "&lt;script&gt;" in page
            assert "<script>alert" not in page
            assert "\u202e" not in page
            assert "\x1b" not in page
            visitor.call("/jobs", state=state)
        for one in (job_id.replace("\n", ""), "unspeakable", "wrong", f"torn{EVIL}"):
            page = visitor.page(f"/jobs/{quote(one, safe='')}")
            assert "<script>alert" not in page
            assert "\u202e" not in page
            visitor.call(f"/jobs/{quote(one, safe='')}")
    assert "<script>alert" not in browser.page("/jobs", text=EVIL, tag=EVIL, id=EVIL)
    link = browser.page("/jobs").partition(f"jobs?id={quote(job_id, safe='')}")[1]
    assert link  # a line break cannot stand in a path
    assert [one["id"] for one in browser.call("/jobs", id=job_id)["jobs"]] == [job_id]


def test_arguments_are_shown_only_on_request(browser: Browser, memory: DelayStore, open_browser: Any, add: Any) -> None:
    """Arguments and metadata count as payload."""
    add("secretive", args=["s3cret"], metadata={"who": "m3ta"})
    assert "s3cret" not in browser.page("/jobs/secretive")
    assert "m3ta" not in browser.page("/jobs/secretive")
    assert "args" not in browser.call("/jobs/secretive")
    shown = open_browser(memory, {"store": "memory:"}, show_payloads=True)
    assert "s3cret" in shown.page("/jobs/secretive")
    assert shown.call("/jobs/secretive")["metadata"] == {"who": "m3ta"}
    assert "s3cret" not in shown.page("/jobs")


def test_pickled_arguments_are_not_unpickled(memory: DelayStore, open_browser: Any, tmp_path: Path) -> None:
    """A pickle that would write a file when it is read does not write it."""

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    pickled = base64.b64encode(pickle.dumps(Bomb())).decode()
    stored(memory, "bomb", a=[{"$": "pickle", "v": pickled}], k={"deep": {"$": "tuple", "v": [{"$": "pickle"}]}})
    shown = open_browser(memory, {"store": "memory:"}, show_payloads=True)
    page = shown.page("/jobs/bomb")
    assert page.count("(pickled, not shown)") == 2
    assert pickled not in page
    assert not (tmp_path / "exploded").exists()


def test_a_function_is_not_imported(browser: Browser, memory: DelayStore) -> None:
    """A job may name a module that does harm when it is imported, and so may its trigger."""
    stored(memory, "importing", f="this:d", t=["this:d", {}])
    sys.modules.pop("this", None)
    browser.page("/jobs")
    page = browser.page("/jobs/importing")
    assert "this" not in sys.modules
    assert "not one that can be computed here" in page


def test_a_job_that_does_not_exist_is_not_found(browser: Browser) -> None:
    """The page and the call answer 404 and say why."""
    assert "there is no job" in browser.page("/jobs/nobody", 404)
    assert browser.call("/jobs/nobody", 404)["error"]["kind"] == "NotFound"


def test_the_last_runs_are_shown(browser: Browser, add: Any, jobstore: RedisWheelJobStore) -> None:
    """Runs have their outcome, their lateness and their duration, on the page of their job too."""
    from wheel_sched_apscheduler.entries import RunRecord
    from wheel_sched_apscheduler.stores.run_records import dump_records

    from wheel_sched.store.core.items import Found

    add("worker")
    now_ms = jobstore.store.now_ms()
    old_ms = now_ms - 5_000_000
    records = [
        RunRecord("worker", f"worker:{at}", at, at + 5, at + 10, at + 1_510, "error", f"boom {EVIL}", 1, "host:1")
        for at in (old_ms, now_ms - 60_000)
    ]
    records.append(RunRecord("other", "other:1", now_ms, now_ms, 0, now_ms, "missed", "", 1, "host:1"))
    for number, each in enumerate(records):
        body = dump_records([each])
        jobstore.store.restore([Found(f"\0h{number}", "dead", each.finished_ms, 0, "history", body)])
    body = json.dumps([["worker", 1, "x"], None, ["a", "b", "c", 1, 2, 3, "d", "e", 5, "f"]]).encode()
    jobstore.store.restore([Found("\0bad", "dead", now_ms, 0, "history", body)])
    found = browser.call("/jobs/history")
    assert [run["job_id"] for run in found["runs"]] == ["other", "worker", "worker"]
    assert found["complete"]
    assert [run["took_ms"] for run in found["runs"]] == [0, 1_500, 1_500]
    assert [run["lateness_ms"] for run in browser.call("/jobs/history", job="worker")["runs"]] == [10, 10]
    assert len(browser.call("/jobs/history", limit=1)["runs"]) == 1
    for page in (browser.page("/jobs-history"), browser.page("/jobs/worker")):
        assert "boom &lt;script&gt;" in page
        assert "1.5s" in page
    assert "duration in seconds" in browser.page("/jobs/worker")


def test_an_absent_namespace_is_not_created(
    memory: DelayStore, open_browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages say what to start. The API answers 404, and the overview has no panel."""
    monkeypatch.chdir(tmp_path)
    visitor = open_browser(memory, {"store": "embedded:nowhere"})
    for path in ("/jobs", "/jobs/x", "/jobs-history"):
        assert "a scheduler with this job store" in visitor.page(path)
    for path in ("/jobs", "/jobs/x", "/jobs/history", "/jobs/in-flight"):
        assert "nothing was changed" in visitor.call(path, 404)["error"]["message"]
    assert visitor.preview("pause-job", 404, job=["x"])["error"]["kind"] == "JobsAbsent"
    assert "APScheduler" not in visitor.page("/")
    assert list(tmp_path.iterdir()) == []


def test_the_overview_names_quarantined_jobs(browser: Browser, add: Any, jobstore: RedisWheelJobStore) -> None:
    """The panel counts the jobs and names the next one; a job in quarantine needs a person."""
    add("soon")
    add("broken")
    quarantine(jobstore, "broken")
    page = browser.page("/")
    assert "APScheduler jobs" in page
    assert "1 job of APScheduler in quarantine" in page
    assert "soon in " in page


def test_a_user_class_of_triggers_is_named(browser: Browser, memory: DelayStore) -> None:
    """A trigger that is not APScheduler's is shown as it is stored."""
    stored(memory, "own", t=["app:Moon", {"phase": "full"}])
    (found,) = browser.call("/jobs")["jobs"]
    assert "app:Moon" in found["trigger"]


def test_the_page_of_a_frequent_job_is_quick(browser: Browser, producer: Producer, job: Any) -> None:
    """A job that runs every second has at most 300 marks."""
    producer.add_job(job, IntervalTrigger(seconds=1, timezone="UTC"), id="often")
    assert "300 or more runs in the next 24 hours" in browser.page("/jobs/often")
