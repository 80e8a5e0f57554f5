"""Who is behind among fair jobs: in `stats`, in `list --by key`, in the metrics and on the page of the topic `job`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_apscheduler.dashboard.part import PART

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.cli.fair_keys import list_keys
from retry_topic.dashboard.part import PART as RETRY_TOPICS
from retry_topic.management.settings import RetrySettings
from wheel_sched.config import Settings, load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.observability.prometheus import MetricsCollector
from wheel_sched.store import DelayStore
from wheel_sched.store.fair_shares.numbers import fair_topics

FAIR = {"by": "tenant", "weights": {"gold": 4}, "max_in_flight": 1}


@pytest.fixture
def behind(memory: DelayStore, job: Callable[..., None]) -> DelayStore:
    """A store in which three jobs of each of two tenants are due, and one job of gold has been claimed."""
    jobs = RedisWheelJobStore(store=memory, fair=FAIR)
    producer = Producer(jobs, timezone="UTC")
    due = datetime.now(UTC) - timedelta(minutes=1)
    for number in range(3):
        for tenant in ("gold", "<b>iron"):
            producer.add_job(job, "date", run_date=due, id=f"{tenant}.{number}", tags=[f"tenant:{tenant}"])
    assert jobs.connection.fair is not None
    jobs.connection.fair.write_to(memory)
    assert [one.job_id for one in jobs.claim_batch(datetime.now(UTC), 1).occurrences] == ["<b>iron.0"]
    assert [one.job_id for one in jobs.claim_batch(datetime.now(UTC), 1).occurrences] == ["gold.0"]
    return memory


def test_commands_and_metrics_name_the_tenants(behind: DelayStore, capsys: pytest.CaptureFixture[str]) -> None:
    """`stats`, `list --by key` and the metrics have the tenants under the topic `job`, with what waits for them."""
    (fair,) = fair_topics(behind, behind.counts())  # `stats` reads the numbers in the same way
    assert (fair.topic, fair.waiting, fair.at_limit) == ("job", 4, frozenset({"gold", "<b>iron"}))
    list_keys(behind, "job", None, True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(row["key"], row["waiting"], row["in_flight"]) for row in rows} == {("gold", 2, 1), ("<b>iron", 2, 1)}
    (family,) = (one for one in MetricsCollector({}, behind).collect() if one.name == "wheel_sched_fair_overdue")
    overdue = {(one.labels["topic"], one.labels["key"]): one.value for one in family.samples}
    assert overdue == {("job", "gold"): 2, ("job", "<b>iron"): 2, ("job", "(others)"): 0}


def test_the_page_of_the_topic_speaks_of_jobs(behind: DelayStore) -> None:
    """The page has the tenants, and links to the pages of jobs. It says nothing of messages, policies and readers."""
    loaded = load_settings({}, env={}, kinds=(Settings, RetrySettings))
    config = DashboardConfig(right="read", extras={"broker": MemoryBroker()})
    app = DashboardApp(behind, loaded, everyone("read"), config=config, parts=(CORE, RETRY_TOPICS, PART))
    with TestClient(app, base_url="http://localhost") as client:
        page = client.get("/topics/job").text
        found: dict[str, Any] = client.get("/api/v1/topics/job").json()
    app.dashboard.close()
    main = page[page.index("<main") : page.index("</main>")]
    assert "Overdue jobs: 4." in main
    assert len(re.findall(r"1 \(at the limit\)", main)) == 2
    assert 'href="/jobs/' in main
    assert "/items" not in main
    assert "<b>iron" not in main
    for word in ("all messages", "broker", "delivered 8 times", "Who reads it"):
        assert word not in main
    assert (found["policy"], found["fair"]["waiting"]) == ("", 4)
    assert found["policy_words"] == "none: the topic holds jobs, and a policy decides about messages"


def test_a_topic_of_messages_may_have_the_same_name(memory: DelayStore) -> None:
    """If the broker has a topic `job`, its page speaks of messages."""
    loaded = load_settings({}, env={}, kinds=(Settings, RetrySettings))
    broker = MemoryBroker()
    broker.create_topic("job")
    config = DashboardConfig(right="read", extras={"broker": broker})
    app = DashboardApp(memory, loaded, everyone("read"), config=config, parts=(CORE, RETRY_TOPICS, PART))
    with TestClient(app, base_url="http://localhost") as client:
        page = client.get("/topics/job").text
    app.dashboard.close()
    assert "all messages of this topic" in page
    assert "delivered 8 times" in page
