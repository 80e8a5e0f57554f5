"""The dashboard over a server, with jobs of a real scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_apscheduler.dashboard.part import PART

from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.dashboard import dashboard, everyone
from wheel_sched.store import open_store

if TYPE_CHECKING:
    from tests.servers.valkey import TemporaryServer

pytestmark = pytest.mark.real

BEGUN, GO_ON = threading.Event(), threading.Event()


def wait_for_the_test() -> None:
    """A job that is under way until the test lets it end."""
    BEGUN.set()
    GO_ON.wait(60)


def fail() -> None:
    """A job that fails."""
    raise RuntimeError("no paper")


@pytest.fixture
def namespace() -> str:
    return f"aps-{uuid4().hex[:8]}"


@pytest.fixture
def scheduler(real_server: TemporaryServer, namespace: str) -> Iterator[Any]:
    """A scheduler that runs jobs of the namespace."""
    BEGUN.clear()
    GO_ON.clear()
    made = BackgroundScheduler(timezone="UTC")
    made.add_jobstore(RedisWheelJobStore(real_server.url, namespace=namespace, shards=2))
    made.start()
    yield made
    GO_ON.set()
    made.shutdown()


def test_jobs_of_a_scheduler_are_shown_and_changed(
    real_server: TemporaryServer, namespace: str, scheduler: Any, open_browser: Any, wait_until: Any
) -> None:
    """A run under way is shown with its process, and a failed run with its error. The scheduler sees changes."""
    scheduler.add_job(wait_for_the_test, id="long", next_run_time=None, trigger="interval", hours=1)
    scheduler.add_job(fail, "interval", hours=1, id="failing")
    scheduler.add_job(fail, "cron", hour=2, id="nightly")
    with open_store(real_server.url, namespace=f"{namespace}-core") as store:
        visitor = open_browser(store, {"store": real_server.url, "namespace": namespace})
        assert visitor.call("/jobs")["counts"]["paused"] == 1
        assert visitor.act("run-job-now", job=["long", "failing"])["done"] == 2
        assert BEGUN.wait(60)
        wait_until(lambda: [bool(run["owner"]) for run in visitor.call("/jobs/in-flight")["runs"]] == [True])
        (run,) = visitor.call("/jobs/in-flight")["runs"]
        assert run["job_id"] == "long"
        assert run["owner"] in visitor.page("/jobs", state="in_flight")
        wait_until(lambda: visitor.call("/jobs/history", job="failing")["runs"] != [])
        (ended,) = visitor.call("/jobs/history", job="failing")["runs"]
        assert (ended["outcome"], "no paper" in ended["error"]) == ("error", True)
        assert "no paper" in visitor.page("/jobs/failing")
        assert visitor.act("pause-job", job=["nightly"])["done"] == 1
        assert scheduler.get_job("nightly").next_run_time is None
        assert visitor.act("resume-job", job=["nightly"])["done"] == 1
        assert scheduler.get_job("nightly").next_run_time is not None
        assert visitor.act("delete-job", job=["nightly"])["done"] == 1
        assert scheduler.get_job("nightly") is None
        visitor.page("/")


def test_an_absent_namespace_of_a_server_is_not_created(
    real_server: TemporaryServer, namespace: str, open_browser: Any
) -> None:
    """Looking for jobs writes nothing."""
    import redis

    with open_store("memory:") as store:
        extras = {"apscheduler_namespace": namespace}  # other tests create the default namespace
        visitor = open_browser(store, {"store": real_server.url}, extras=extras)
        assert "a scheduler with this job store" in visitor.page("/jobs")
    with redis.Redis.from_url(real_server.url) as client:
        assert client.keys(f"*{namespace}*") == []


def add_jobs(url: str, namespace: str, *job_ids: str) -> None:
    store = RedisWheelJobStore(url, namespace=namespace)
    producer = Producer(store, timezone="UTC")
    for job_id in job_ids:
        producer.add_job(fail, "interval", hours=1, id=job_id)
    producer.close()
    store.connection.close()


@pytest.mark.parametrize("given_as", ["address", "open store"])
def test_a_mounted_dashboard_shows_the_jobs_beside_its_messages(redis_url: str, given_as: str) -> None:
    """If the namespace of the messages has no jobs, the jobs of the namespace "apscheduler" are shown.

    If that namespace does not exist, it is not created.
    """
    with open_store(redis_url, namespace="orders") as store:
        app = dashboard(redis_url if given_as == "address" else store, access=everyone("read"), namespace="orders")
        visitor = Visiting(app, PART)
        assert "a scheduler with this job store" in visitor.page("/jobs")
        assert visitor.call("/jobs", 404)["error"]["kind"] == "JobsAbsent"
        app.close()
        add_jobs(redis_url, "apscheduler", "beside")
        app = dashboard(redis_url if given_as == "address" else store, access=everyone("read"), namespace="orders")
        assert [job["id"] for job in Visiting(app, PART).call("/jobs")["jobs"]] == ["beside"]
        app.close()


def test_the_namespace_of_jobs_can_be_named(redis_url: str) -> None:
    """The dashboard shows the namespace in the settings if it has jobs. `extras` may name any other namespace."""
    for namespace in ("mine", "other", "apscheduler"):
        add_jobs(redis_url, namespace, f"in-{namespace}")
    for namespace, extras in (("mine", {}), ("mine", {"apscheduler_namespace": "other"}), ("absent", {})):
        app = dashboard(redis_url, access=everyone("read"), namespace=namespace, extras=extras)
        expected = extras.get("apscheduler_namespace") or ("apscheduler" if namespace == "absent" else namespace)
        assert [job["id"] for job in Visiting(app, PART).call("/jobs")["jobs"]] == [f"in-{expected}"]
        app.close()
