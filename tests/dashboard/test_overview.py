"""The overview as a page and as an API call: how late items went out, and which topics are paused."""

from __future__ import annotations

from dataclasses import replace

from starlette.testclient import TestClient

from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.store import Member, Members, open_store

COUNTS = (7, 0, 3) + (0,) * (len(LATENESS_BUCKETS_MS) - 2)
SERVICE = Member("retry-service", "billing", releases=True, lateness=COUNTS, id="one")


def test_the_lateness_of_all_live_processes_is_added_up() -> None:
    """A process of another release may send more or fewer counts. They are left out."""
    with open_store("memory:") as store:
        app = DashboardApp(store, load_settings({}, env={}), everyone("read"), config=DashboardConfig(), parts=(CORE,))
        client = TestClient(app, base_url="http://localhost")
        assert "How late items go out" not in client.get("/").text
        for member in (SERVICE, replace(SERVICE, id="two"), replace(SERVICE, id="three", lateness=(1, 2))):
            Members(store).announce(member, 60_000)
        page = client.get("/").text
        assert "How late items go out" in page
        assert "items by lateness: up to 1ms 14; up to 2ms 0; up to 5ms 6" in page
        told = client.get("/api/v1/overview").json()["lateness"]
        assert [(one["up_to_ms"], one["count"]) for one in told[:3]] == [(1, 14), (2, 0), (5, 6)]
        assert (told[-1], len(told)) == ({"up_to_ms": None, "count": 0}, len(COUNTS))


def test_a_paused_topic_is_told_until_it_is_resumed() -> None:
    """Page and API call say which topic is paused, for how long, and what to do."""
    with open_store("memory:") as store:
        app = DashboardApp(store, load_settings({}, env={}), everyone("read"), config=DashboardConfig(), parts=(CORE,))
        client = TestClient(app, base_url="http://localhost")
        store.pause("orders")
        (told,) = client.get("/api/v1/overview").json()["problems"]
        assert told["what"].startswith("topic orders has been paused for ")
        assert (told["level"], told["fix"]) == ("warn", "resume it when it may go on")
        assert "topic orders has been paused for " in client.get("/").text
    with open_store("memory:") as store:
        app = DashboardApp(store, load_settings({}, env={}), everyone("read"), config=DashboardConfig(), parts=(CORE,))
        store.pause("orders")
        store.resume("orders")
        client = TestClient(app, base_url="http://localhost")
        assert client.get("/api/v1/overview").json()["problems"] == []
