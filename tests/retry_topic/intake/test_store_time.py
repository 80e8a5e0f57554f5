"""The store's time without a question: it is never before the store's own time, and nobody waits for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from retry_topic.connection import Connection
from retry_topic.intake import store_time
from retry_topic.intake.store_time import StoreTime
from tests.retry_topic.intake.test_one_batch_ahead import Log, Logs, drain, failed, intake
from wheel_sched.store import DelayStore, open_store
from wheel_sched.testing import VirtualClock


class FakeStore:
    """A store whose time a test sets. It counts how often it is asked."""

    def __init__(self, ticks: bool = True) -> None:
        self.ticks = ticks
        self.time_ms = 5_000
        self.asked = 0

    def now_ms(self) -> int:
        self.asked += 1
        return self.time_ms


class Clocks:
    """This machine's two clocks, in ns."""

    def __init__(self) -> None:
        self.steady, self.wall = 10**9, 10**18

    def monotonic_ns(self) -> int:
        return self.steady

    def time_ns(self) -> int:
        return self.wall

    def pass_ms(self, ms: float, wall_ms: float | None = None) -> None:
        self.steady += int(ms * 1e6)
        self.wall += int((ms if wall_ms is None else wall_ms) * 1e6)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(store_time, "time", clocks)
    return clocks


def time_of(store: Any) -> StoreTime:
    return StoreTime(store)


def test_the_time_that_passed_is_added(clocks: Clocks) -> None:
    """The answer may be up to a millisecond old in itself, and the store's clock may be quicker than ours. So the
    estimate is the answer, the time since, and a little more."""
    store = FakeStore()
    known = time_of(store)
    assert known.estimate() is None
    assert known.ask() == 5_000
    assert known.estimate() == 5_001
    clocks.pass_ms(0.2)
    assert known.estimate() == 5_002
    clocks.pass_ms(599.8)
    assert known.estimate() == 5_000 + 1 + 600 + 1
    assert store.asked == 1


def test_after_a_second_the_store_is_asked_again(clocks: Clocks) -> None:
    """A step of the store's clock is noticed within a second."""
    store = FakeStore()
    known = time_of(store)
    known.ask()
    clocks.pass_ms(1_000)
    assert known.estimate() is not None
    clocks.pass_ms(0.001)
    assert known.estimate() is None


@pytest.mark.parametrize("wall_ms", [20, -20, 3_600_000])
def test_a_machine_that_slept_asks_again(clocks: Clocks, wall_ms: int) -> None:
    """While a machine is suspended, its monotonic clock may stand still. Then its clocks have moved apart."""
    known = time_of(FakeStore())
    known.ask()
    clocks.pass_ms(1, 1 + wall_ms)
    assert known.estimate() is None


def test_a_question_without_an_answer_leaves_no_time(clocks: Clocks) -> None:
    """If the store does not answer, the answer before is no longer used."""

    class Away(FakeStore):
        def now_ms(self) -> int:
            if self.asked:
                raise ConnectionError
            return super().now_ms()

    known = time_of(Away())
    known.ask()
    with pytest.raises(ConnectionError):
        known.ask()
    assert known.estimate() is None


def test_a_store_on_a_test_clock_is_always_asked() -> None:
    """A test moves such a clock, so our own clocks say nothing about it."""
    clock = VirtualClock(1_000)
    with open_store("memory:", test_clock=clock.monotonic_ms) as store:
        known = StoreTime(store)
        assert known.ask() == 1_000
        assert known.estimate() is None


def test_the_estimate_is_never_before_a_real_servers_time(redis_url: str) -> None:
    """At 200 moments within a second: the estimate is not below what the server then says."""
    with open_store(redis_url) as store:
        known = StoreTime(store)
        known.ask()
        behind = []
        for _ in range(200):
            time.sleep(0.003)
            estimate_ms = known.estimate()
            if estimate_ms is None:
                known.ask()
            else:
                behind.append(store.now_ms() - estimate_ms)
        assert len(behind) > 150
        # the server was asked after the estimate, and each question takes a moment
        assert sorted(behind)[len(behind) // 2] <= 0


def test_a_busy_store_is_not_asked_for_its_time(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While batches follow each other, the intake asks once for the time, and after a pause once more."""
    asked: list[int] = []
    now_ms = DelayStore.now_ms

    def ask(store: DelayStore) -> int:
        asked.append(1)
        return now_ms(store)

    monkeypatch.setattr(DelayStore, "now_ms", ask)
    with Connection(open_store(redis_url), Logs()) as connection:
        taking, log = intake(connection), Log(*(failed(f"a{n}") for n in range(40)))
        begun = time.monotonic()
        drain(taking, log)
        assert 1 <= len(asked) <= 1 + int(time.monotonic() - begun) + 1
        before = len(asked)
        drain(taking, log := Log(failed("b"), source="g.retry/1"))
        assert len(asked) == before + 1
        assert connection.store.counts().sizes["due"] == 41
