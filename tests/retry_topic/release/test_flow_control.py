"""Flow control in the store: rates, budgets and circuits, the same in memory and in the script, in test time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import fakeredis
import pytest

from wheel_sched.store import DelayStore
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.rate_limits.face import RateLimits
from wheel_sched.store.rate_limits.values import Admitted, Limits
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect

if TYPE_CHECKING:
    import redis

CIRCUIT = Limits(trip_ppm=500_000, of=4, within_ms=10_000, open_ms=5_000)


class Control:
    """Flow control over a store in test time; `now_ms` is its clock."""

    def __init__(self, store: DelayStore) -> None:
        self.store = store
        self.flow = RateLimits(store)

    def admit(self, limits: Limits, wanted: int, destination: str = "") -> Admitted:
        return self.flow.admit("g/orders", limits, [(destination, wanted)])[0]

    def report(self, succeeded: int, failed: int, first: int = 0, destination: str = "") -> None:
        self.flow.report("g/orders", [(destination, first, succeeded, failed)])


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def flow_fake() -> Iterator[redis.Redis]:
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client


@pytest.fixture(params=["memory", "fake", pytest.param("real", marks=pytest.mark.real)])
def control(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Control]:
    """A control over each kind of store."""
    if request.param == "memory":
        yield Control(DelayStore(MemoryBackend(2, clock="test"), shards=2, test_clock=clock).open())
    elif request.param == "fake":
        client = request.getfixturevalue("flow_fake")
        client.flushdb()
        yield Control(DelayStore(RedisBackend(client, Dialect("f")), shards=2, test_clock=clock).open())
    else:
        with client_for(request.getfixturevalue("redis_url")) as client:
            yield Control(DelayStore(RedisBackend(client, Dialect("f")), shards=2, test_clock=clock).open())


def test_a_rate_lets_a_burst_through_and_gives_the_rest_slots_one_interval_apart(
    control: Control, clock: Clock
) -> None:
    """A message that comes again at its slot finds the slot free."""
    limits = Limits(interval_us=100_000, burst=3)
    answer = control.admit(limits, 5)
    assert (answer.granted, answer.step_us, answer.why) == (3, 100_000, "rate")
    assert answer.first_us == clock.now_ms * 1000 + 100_000
    for _ in range(2):
        clock.now_ms += 100
        assert control.admit(limits, 1).granted == 1


def test_no_second_ever_sees_more_than_the_rate_and_its_burst(control: Control, clock: Clock) -> None:
    """Each of 200 messages asks again at its slot: never early, never above the cap, and none waits for ever."""
    limits = Limits(interval_us=50_000, burst=2)
    start_us = clock.now_ms * 1000
    waiting, out = [start_us] * 200, []
    while waiting:
        waiting.sort()
        clock.now_ms = max(clock.now_ms, -(-waiting[0] // 1000))
        due = [at for at in waiting if at <= clock.now_ms * 1000][:25]
        del waiting[: len(due)]
        answer = control.admit(limits, len(due))
        out += [clock.now_ms * 1000] * answer.granted
        waiting += [answer.first_us + number * answer.step_us for number in range(len(due) - answer.granted)]
    assert len(out) == 200
    for number, at in enumerate(out):
        assert sum(at <= other < at + 1_000_000 for other in out[number : number + 40]) <= 20 + 2
    assert out[-1] - start_us <= 200 * 50_000 * 1.1


def test_a_budget_allows_a_share_of_first_attempts_and_a_least(control: Control, clock: Clock) -> None:
    """Without first attempts only the least is allowed; with them the share is added."""
    limits = Limits(share_ppm=200_000, least_mhz=1_000)
    answer = control.admit(limits, 3)
    assert (answer.granted, answer.step_us, answer.why) == (1, 1_000_000, "budget")
    control.report(0, 0, first=1_000)
    clock.now_ms += 10_000
    answer = control.admit(limits, 500)
    first_per_s = 1_000 * (1 - clock.now_ms % 10_000 / 10_000) / 10
    assert answer.step_us == pytest.approx(1_000_000 / (1 + 0.2 * first_per_s), rel=0.01)
    clock.now_ms += 60_000
    assert control.admit(limits, 3).step_us == 1_000_000, "old first attempts count no more"


def test_the_tighter_of_rate_and_budget_holds(control: Control) -> None:
    """The rate holds if the budget would allow more, and the reverse."""
    assert control.admit(Limits(interval_us=2_000_000, burst=1, share_ppm=10_000, least_mhz=1_000), 2).why == "rate"
    assert control.admit(Limits(interval_us=1_000, burst=1, share_ppm=10_000, least_mhz=1_000), 2).why == "budget"


def test_a_circuit_opens_waits_probes_and_closes(control: Control, clock: Clock) -> None:
    """Closed, open, one probe, closed again."""
    assert control.admit(CIRCUIT, 10).granted == 10
    control.report(succeeded=1, failed=2)
    assert control.admit(CIRCUIT, 10).granted == 10, "too few results to say"
    control.report(succeeded=0, failed=1)
    answer = control.admit(CIRCUIT, 10)
    assert (answer.granted, answer.why, answer.first_us) == (0, "open", (clock.now_ms + 5_000) * 1000)
    assert answer.step_us == 500_000, "those that wait are spread over the time until they may"
    control.report(succeeded=5, failed=0)
    assert control.admit(CIRCUIT, 1).granted == 0, "results of what was under way change nothing"
    clock.now_ms += 5_000
    answer = control.admit(CIRCUIT, 10)
    assert (answer.granted, answer.why) == (1, "half-open")
    assert control.admit(CIRCUIT, 10).granted == 0, "one probe at a time"
    control.report(succeeded=1, failed=0)
    assert control.admit(CIRCUIT, 10).granted == 10


def test_a_failed_probe_opens_the_circuit_again_and_a_lost_one_is_repeated(control: Control, clock: Clock) -> None:
    """A probe without a result is waited for as long as the circuit stays open."""
    control.admit(CIRCUIT, 1)
    control.report(succeeded=0, failed=4)
    assert control.admit(CIRCUIT, 1).why == "open"
    clock.now_ms += 5_000
    assert control.admit(CIRCUIT, 1).granted == 1
    control.report(succeeded=0, failed=1)
    assert control.admit(CIRCUIT, 1).why == "open"
    clock.now_ms += 5_000
    assert control.admit(CIRCUIT, 1).granted == 1
    assert control.admit(CIRCUIT, 1).granted == 0
    clock.now_ms += 5_000
    assert control.admit(CIRCUIT, 1).granted == 1, "the probe was lost"
    circuit = next(flow for flow in control.flow.flows() if flow.destination is not None)
    assert (circuit.numbers["opens"], circuit.numbers["probes"]) == (2, 3)


def test_destinations_have_circuits_of_their_own_and_one_rate(control: Control) -> None:
    """A destination that is down holds back no other. All share the topic's rate."""
    limits = Limits(interval_us=1_000_000, burst=5, trip_ppm=500_000, of=4, within_ms=10_000, open_ms=5_000)
    control.admit(limits, 0, "down")
    control.report(0, 4, destination="down")
    down, up, also = control.flow.admit("g/orders", limits, [("down", 3), ("up", 3), ("also", 4)])
    assert [(one.granted, one.why) for one in (down, up, also)] == [(0, "open"), (3, "-"), (2, "rate")]


def test_old_failures_fade(control: Control, clock: Clock) -> None:
    """Old failures open no circuit."""
    control.admit(CIRCUIT, 1)
    control.report(0, 3)
    clock.now_ms += 30_000
    control.report(0, 1)
    assert control.admit(CIRCUIT, 1).granted == 1


def test_failures_fade_when_the_window_was_made_longer(control: Control, clock: Clock) -> None:
    """A changed policy keeps the counts, but not for ever."""
    control.admit(CIRCUIT, 1)
    control.report(succeeded=0, failed=3)
    longer = replace(CIRCUIT, within_ms=60_000)
    control.admit(longer, 1)
    control.report(succeeded=0, failed=3)
    clock.now_ms += 180_000
    control.report(succeeded=0, failed=1)
    assert control.admit(longer, 1).granted == 1


@pytest.mark.parametrize("within_ms", [10_000, 60_000, 3_600_000])
def test_failures_before_the_first_retry_count_whatever_the_window_is(control: Control, within_ms: int) -> None:
    """First attempts are reported before any policy is known to the store."""
    control.report(succeeded=0, failed=4, first=4)
    assert control.admit(replace(CIRCUIT, within_ms=within_ms), 1).why == "open"


def test_spread_dues_are_counted_and_hold_nothing_back(control: Control) -> None:
    """They are reported beside the messages that limits held back."""
    assert [control.flow.spread("g/orders", count) for count in (3, 2)] == [3, 5]
    assert control.admit(Limits(), 10).granted == 10
    (topic,) = control.flow.flows()
    assert (topic.topic, topic.numbers["spread"], topic.numbers["granted"]) == ("g/orders", 5, 10)


def test_flows_are_told(control: Control) -> None:
    """Counters of held-back messages, by reason, for stats and metrics."""
    limits = Limits(interval_us=1_000_000, burst=1, trip_ppm=500_000, of=2, within_ms=10_000, open_ms=5_000)
    control.admit(limits, 3, "a")
    control.report(0, 2, destination="a")
    control.admit(limits, 4, "a")
    topic, circuit = sorted(control.flow.flows(), key=lambda flow: flow.destination or "")
    assert (topic.topic, topic.destination, topic.numbers["rate"], topic.numbers["granted"]) == ("g/orders", None, 2, 1)
    assert (circuit.topic, circuit.destination, circuit.state) == ("g/orders", "a", "o")
    assert (circuit.numbers["refused"], circuit.numbers["opens"]) == (4, 1)
