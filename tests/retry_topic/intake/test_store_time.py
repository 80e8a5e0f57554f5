"""The intake estimates the store's time without a call. The estimate is never before the store's time."""

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
    """This machine's monotonic clock and its wall clock, in ns."""

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
    """The estimate is the store's last answer, plus the time since then, plus a small margin. The answer may be a
    millisecond old, and the store's clock may be faster than this machine's."""
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
    """An answer is used for one second, so a step of the store's clock is noticed within a second."""
    store = FakeStore()
    known = time_of(store)
    known.ask()
    clocks.pass_ms(1_000)
    assert known.estimate() is not None
    clocks.pass_ms(0.001)
    assert known.estimate() is None


def test_a_step_of_the_stores_clock_ends_the_estimate(clocks: Clocks) -> None:
    """If another answer of the store has a later time than the estimate, the store is asked again."""
    store = FakeStore()
    known = time_of(store)
    known.ask()
    clocks.pass_ms(10)
    known.heard(5_010)
    assert (known.estimate(), known.stepped) == (5_012, False)
    known.heard(5_510)
    assert (known.estimate(), known.stepped) == (None, True)
    store.time_ms = 5_511
    assert known.ask() == 5_511
    assert (known.estimate(), known.stepped) == (5_512, False)


@pytest.mark.parametrize("wall_ms", [20, -20, 3_600_000])
def test_a_machine_that_slept_asks_again(clocks: Clocks, wall_ms: int) -> None:
    """While a machine is suspended, its monotonic clock may stand still. So the answer is dropped if the monotonic
    clock and the wall clock differ."""
    known = time_of(FakeStore())
    known.ask()
    clocks.pass_ms(1, 1 + wall_ms)
    assert known.estimate() is None


def test_a_question_without_an_answer_leaves_no_time(clocks: Clocks) -> None:
    """If the store does not answer, its previous answer is not used any more."""

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
    """With a test clock there is no estimate, because this machine's clocks do not follow the test clock."""
    clock = VirtualClock(1_000)
    with open_store("memory:", test_clock=clock.monotonic_ms) as store:
        known = StoreTime(store)
        assert known.ask() == 1_000
        assert known.estimate() is None


def test_the_estimate_is_never_before_a_real_servers_time(redis_url: str) -> None:
    """The test compares up to 200 estimates with the time that the server returns just after each."""
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
        # the median, because the server answers a moment after the estimate
        assert sorted(behind)[len(behind) // 2] <= 0


def test_a_busy_store_is_not_asked_for_its_time(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While batches follow each other, the intake asks for the time about once a second. After a pause it asks
    again."""
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
