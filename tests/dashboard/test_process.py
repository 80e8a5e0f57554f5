"""The page and the API call about the purgatories and timers of this process."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.json_schema import validate
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.dashboard.process_part import PROCESS
from wheel_sched.management import process
from wheel_sched.management.process import shown_purgatories, shown_timers
from wheel_sched.purgatory import AsyncPurgatory, DelayedOperation, HeartbeatMonitor, Purgatory
from wheel_sched.store import DelayStore, open_store
from wheel_sched.testing import VirtualClock
from wheel_sched.timers import AsyncTimer, SystemTimer

HOSTILE = "<b>name</b>\u202e"


class Waiting(DelayedOperation):
    """An operation that is completed by force or by its timeout."""

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None: ...


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def client_of(store: DelayStore, **config: Any) -> TestClient:
    loaded = load_settings({}, env={})
    app = DashboardApp(store, loaded, everyone("read"), config=DashboardConfig(**config), parts=(CORE, PROCESS))
    return TestClient(app, base_url="http://localhost")


def data(client: TestClient) -> Any:
    """The answer of the API call, checked against the schema of the call."""
    answer = client.get("/api/v1/process")
    assert answer.status_code == 200
    validate(answer.json(), PROCESS.calls[0].schema)
    return answer.json()


def made_on(loop: asyncio.AbstractEventLoop, delay_ms: int) -> AsyncTimer:
    """An `AsyncTimer` on this event loop, in which one timer waits."""

    async def make() -> AsyncTimer:
        timer = AsyncTimer()
        timer.schedule(delay_ms, lambda: None)
        return timer

    return asyncio.run_coroutine_threadsafe(make(), loop).result(10)


def test_without_anything_the_page_says_how_to_hand_it_over(store: DelayStore) -> None:
    """Without a timer and a purgatory, the page shows how to pass them, and the API call has empty lists."""
    client = client_of(store)
    page = client.get("/timers")
    assert page.status_code == 200
    assert 'purgatories={"heartbeats": purgatory}, timers={"app": timer}' in page.text
    imports = re.findall(r"from (\S+) import (.+)", page.text)
    assert len(imports) == 3
    for module, names in imports:  # the imports of the example work
        assert all(hasattr(import_module(module), name) for name in names.split(", "))
    found = data(client)
    assert (found["purgatories"], found["timers"]) == ([], [])
    assert found["pid"] > 0
    assert '<a href="/timers">Timers</a>' in client.get("/").text


def test_a_purgatory_is_shown_with_what_it_counts(store: DelayStore) -> None:
    """The page shows how many operations wait, were completed and expired. The API call has the same numbers."""
    with Purgatory[str]() as purgatory:
        first, second = Waiting(60_000), Waiting(60_000)
        purgatory.try_complete_else_watch(first, ["a", "b"])
        purgatory.try_complete_else_watch(second, ["a"])
        second.force_complete()
        client = client_of(store, purgatories={HOSTILE: purgatory})
        (found,) = data(client)["purgatories"]
        assert (found["kind"], found["error"]) == ("Purgatory", "")
        numbers = found["numbers"]
        assert (numbers["watched"], numbers["keys"], numbers["delayed"], numbers["forced"]) == (2, 2, 1, 1)
        page = client.get("/timers").text
        assert "by force 1" in page  # the text of the chart
        assert "<b>name" not in page
        assert "\u202e" not in page
        assert "How to see them here" not in page


def test_expirations_are_shown_by_lateness(store: DelayStore) -> None:
    """An operation that expired late is counted in the bar of its lateness."""
    clock = VirtualClock()
    ended = threading.Event()

    class Expiring(Waiting):
        def on_complete(self) -> None:
            ended.set()

    with Purgatory[str](clock=clock) as purgatory:
        purgatory.try_complete_else_watch(Expiring(100), ["a"])
        clock.advance(130)
        assert ended.wait(10)
        (found,) = shown_purgatories({"late": purgatory})
        assert found.numbers["expired"] == found.completed == 1
        assert [(bound, count) for bound, count in found.lateness if count] == [(50, 1)]
        page = client_of(store, purgatories={"late": purgatory}).get("/timers").text
        assert "30ms late" in page
        assert "up to 50ms 1" in page


def test_a_monitor_of_heartbeats_is_shown(store: DelayStore) -> None:
    """The page shows how many members the monitor has, how many have expired, and when the next member expires."""
    clock = VirtualClock()
    monitor = HeartbeatMonitor[str](1_000, lambda _: None, clock=clock)
    monitor.add("a")
    monitor.add("b", 5_000)
    clock.advance(1_500)
    monitor.run_due()
    client = client_of(store, purgatories={"heartbeats": monitor})
    (found,) = data(client)["purgatories"]
    assert found["numbers"] == {"members": 1, "expired": 1, "next_in_ms": 3_500}
    assert "in 3.5s" in client.get("/timers").text


def test_a_timer_is_shown_with_its_levels(store: DelayStore) -> None:
    """The page shows how many timers wait on each level, when the timer wakes next, and how many ran late."""
    clock = VirtualClock()
    with SystemTimer(clock=clock) as timer:
        timer.schedule(5_000, lambda: None)
        timer.schedule(100_000_000, lambda: None)
        client = client_of(store, timers={"app": timer})
        (found,) = data(client)["timers"]
        numbers = found["numbers"]
        assert (numbers["pending"], numbers["next_in_ms"], numbers["tick_ms"]) == (2, 5_000, 1)
        assert (numbers["late"], numbers["late_max_ms"]) == (0, 0)
        assert sum(found["levels"]) == 2
        assert len(found["levels"]) > 1
        page = client.get("/timers").text
        assert "in 5s" in page
        assert "waiting timers of app by level: level 0 0" in page
    assert shown_timers({"app": timer})[0].closed
    assert "closed" in client.get("/timers").text


def test_a_timer_of_a_loop_is_read_on_its_loop(store: DelayStore, loop: asyncio.AbstractEventLoop) -> None:
    """An `AsyncTimer` may be used only in the thread of its event loop, so its numbers are read in this thread."""
    threads: list[int] = []

    class Noting(AsyncTimer):
        def next_ms(self) -> int | None:
            threads.append(threading.get_ident())
            return super().next_ms()

    async def make() -> Noting:
        return Noting()

    timer = asyncio.run_coroutine_threadsafe(make(), loop).result(10)
    (found,) = data(client_of(store, timers={"loop": timer}))["timers"]
    assert (found["kind"], found["error"], found["numbers"]["pending"]) == ("Noting", "", 0)
    assert threads
    assert threading.get_ident() not in threads
    ident: int = asyncio.run_coroutine_threadsafe(_ident(), loop).result(10)
    assert set(threads) == {ident}


async def _ident() -> int:
    return threading.get_ident()


def test_on_its_own_loop_a_timer_is_read_at_once() -> None:
    """A function that already runs on the timer's event loop reads the timer directly. To wait would be a deadlock."""

    async def read() -> Any:
        timer = AsyncTimer()
        timer.schedule(60_000, lambda: None)
        found = shown_timers({"loop": timer})[0]
        timer.close()
        return found

    assert asyncio.run(read()).numbers["pending"] == 1


def test_a_loop_that_does_not_answer_is_an_error_of_this_timer_only(
    store: DelayStore, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a loop is closed or does not answer, its timer has no numbers. Other timers are shown as usual."""
    monkeypatch.setattr(process, "LOOP_S", 0.05)
    timer = made_on(loop, 60_000)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait(30)

    loop.call_soon_threadsafe(hold)
    assert held.wait(10)
    with SystemTimer() as other:
        client = client_of(store, timers={"held": timer, "other": other})
        found = {one["name"]: one for one in data(client)["timers"]}
        assert "did not answer" in found["held"]["error"]
        assert found["other"]["error"] == ""
        assert "did not answer" in client.get("/timers").text
    release.set()
    asyncio.run_coroutine_threadsafe(_ident(), loop).result(10)
    gone = asyncio.new_event_loop()
    gone.close()
    assert shown_timers({"gone": AsyncTimer(loop=gone)})[0].error == "its event loop is closed"


def test_a_purgatory_of_a_loop_is_shown(loop: asyncio.AbstractEventLoop) -> None:
    """The counters of an `AsyncPurgatory` may be read by any thread."""

    async def make() -> AsyncPurgatory[str]:
        purgatory = AsyncPurgatory[str]()
        purgatory.try_complete_else_watch(Waiting(60_000), ["a"])
        return purgatory

    purgatory = asyncio.run_coroutine_threadsafe(make(), loop).result(10)
    (found,) = shown_purgatories({"loop": purgatory})
    assert (found.kind, found.numbers["delayed"]) == ("AsyncPurgatory", 1)
    loop.call_soon_threadsafe(purgatory.close)


def test_other_objects_are_no_timers(store: DelayStore) -> None:
    """If an object of another class was given as a timer, the page says so, and shows everything else."""
    client = client_of(store, purgatories={"a": object()}, timers={"b": 5})
    found = data(client)
    assert "expected a Purgatory or a HeartbeatMonitor, got: object" in found["purgatories"][0]["error"]
    assert "expected a SystemTimer or an AsyncTimer, got: int" in found["timers"][0]["error"]
    assert client.get("/timers").text.count('class="alert"') == 2


def test_the_page_is_live() -> None:
    """The page about the process has live updates."""
    (page,) = PROCESS.pages
    assert (page.path, page.label, page.live) == ("/timers", "Timers", True)
