"""The store of a simulated world: scripts answer as their twins (the same operations in Python), and faults take
effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from retry_topic.simulation.checker import RetryKind, RetryLogKind
from tests.servers.valkey import TemporaryServer
from wheel_sched.errors import StoreUnavailable
from wheel_sched.simulation.calls import MS, START_NS
from wheel_sched.simulation.runner import Kind, run_scenarios
from wheel_sched.simulation.scenario import CLOCKS, Fault, Scenario
from wheel_sched.simulation.script_contents import ScriptContents
from wheel_sched.simulation.store import StoreServer
from wheel_sched.simulation.store_contents import MemoryContents, StoreContents
from wheel_sched.simulation.world import World
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.counts import Look
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.schedule import Schedule

KINDS = {"retry": RetryKind(), "retry-log": RetryLogKind()}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
NOW_US = START_NS // 1_000


def assert_one_trace(kind: Kind, seeds: Sequence[int], store: str) -> None:
    """Check that the history of each seed has the same trace with the store in memory as with `store`."""
    scenarios = [kind.draw(seed) for seed in seeds]
    expected = [(result.scenario.seed, result.digest) for result in run_scenarios(kind, scenarios)]
    over_scripts = run_scenarios(kind, [replace(scenario, store=store) for scenario in scenarios])
    assert [(result.scenario.seed, result.digest) for result in over_scripts] == expected


@pytest.mark.slow
@each_kind
def test_a_history_over_scripts_is_that_over_memory(kind: Kind) -> None:
    """A history has the same trace with Lua scripts on fakeredis as with the store in memory.

    In one of the two histories a failover occurs. In the other the server forgets its scripts.
    """
    seeds = [first_seed(kind, "failover"), first_seed(kind, "flush-scripts")]
    assert_one_trace(kind, seeds, "fakeredis")


@pytest.mark.proof
@pytest.mark.slow
@each_kind
def test_more_histories_over_scripts_are_those_over_memory(kind: Kind) -> None:
    """Five histories of each kind of world have the same trace with Lua scripts on fakeredis as with the store in
    memory."""
    assert_one_trace(kind, range(5), "fakeredis")


@pytest.mark.proof
@pytest.mark.real
@pytest.mark.timeout(180)
@each_kind
def test_twenty_histories_over_a_server_are_those_over_memory(kind: Kind, real_server: TemporaryServer) -> None:
    """A real server executes the scripts. Twenty histories of each kind of world have the same trace as with the store
    in memory."""
    assert_one_trace(kind, range(20), real_server.url)


def first_seed(kind: Kind, fault: str) -> int:
    return next(seed for seed in range(200) if any(one.kind == fault for one in kind.draw(seed).faults))


@pytest.fixture(params=["memory", "fakeredis"])
def contents(request: pytest.FixtureRequest) -> Iterator[StoreContents]:
    """The contents of a store with two shards, in memory and on fakeredis."""
    found: StoreContents = MemoryContents(2) if request.param == "memory" else ScriptContents("fakeredis", 2)
    yield found
    found.empty()


def schedule(item_id: str, due_ms: int, token: str = "") -> Call[object]:
    return Call(1, Schedule([Item(item_id, due_ms, b"x", "orders")], token=token))


def claim(lease_ms: int = 1_000) -> Call[object]:
    return Call(1, ClaimDue(10, lease_ms))


def test_the_contents_show_items_claims_and_markers(contents: StoreContents) -> None:
    """In memory and on a server, `contents` shows the same items, claims and markers, which the checker reads."""
    due_ms = NOW_US // 1_000
    contents.execute([schedule("b", due_ms + 5_000), schedule("a", due_ms)], NOW_US)
    contents.execute([claim()], NOW_US)
    found = [(item.shard, item.id, item.state, item.claim, item.reason) for item in contents.items()]
    assert found == [(1, "a", "leased", 1, ""), (1, "b", "due", 0, "")]
    assert contents.waiting()
    assert contents.marker(0).id == b"0-0"
    assert (contents.marker(1).id, contents.marker(1).due_ms) == (b"2-0", due_ms)
    contents.empty()
    assert contents.items() == []
    assert not contents.waiting()
    assert contents.marker(1).id == b"0-0"


def test_a_first_answer_expires_by_virtual_time(contents: StoreContents) -> None:
    """`schedule` is called again with the same id and token. For a minute the answer is that of the first call, STORED.
    After that the store no longer knows the token, so the answer is DUPLICATE."""
    answers = [contents.execute([schedule("a", 1, token="t")], NOW_US + s * 1_000_000)[0] for s in (0, 59, 61)]
    assert [answer.outcomes for answer in answers] == [[Outcome.STORED], [Outcome.STORED], [Outcome.DUPLICATE]]


def test_forgotten_scripts_are_loaded_again(contents: StoreContents) -> None:
    """When the server has forgotten its scripts, the items are still there, and the next call is answered."""
    contents.execute([schedule("a", 1)], NOW_US)
    contents.flush_scripts()
    (look,) = contents.execute([Call(1, Look(0, 10))], NOW_US)
    assert look.due_head_ms == 1


@pytest.fixture
def server() -> StoreServer:
    return StoreServer(World(Scenario(0, "none", 0, ())), 2)


def test_a_failover_loses_the_writes_of_its_lag(server: StoreServer) -> None:
    """After a failover with a lag of 700 ms, the new server lacks the writes of the last 700 ms.

    The new server has another run id, and refuses calls at first.
    """
    clock = server.world.scheduler
    server.perform([schedule("a", 1)])
    clock.now_ns = 500 * MS
    server.perform([schedule("b", 1)])
    clock.now_ns = 1_000 * MS
    server.strike(Fault("failover", "store", 1_000, 700))
    assert [item.id for item in server.contents.items()] == ["a"]
    (lost,) = server.lost_calls
    assert isinstance(lost.operation, Schedule)
    assert [item.id for item in lost.operation.items] == ["b"]
    assert (server.restarts, server.generation) == (1, 1)
    assert server.away_until_ns > clock.now_ns


def test_a_server_that_loads_answers_no_call_and_keeps_its_data(server: StoreServer) -> None:
    """A restarted server refuses all calls until it has loaded its data. Then it has its items from before the
    restart, and a new run id."""
    server.perform([schedule("a", 1)])
    server.strike(Fault("loading", "store", 0, 100))
    (read,), (write,) = server.perform([Call(1, Look(0, 10))]), server.perform([schedule("b", 1)])
    assert isinstance(read, StoreUnavailable)
    assert isinstance(write, StoreUnavailable)
    assert not write.in_doubt
    server.world.scheduler.now_ns = 100 * MS
    assert not isinstance(server.perform([schedule("c", 1)])[0], Exception)
    assert [item.id for item in server.contents.items()] == ["a", "c"]
    assert server.restarts == 1


def test_a_clock_that_drifts_does_not_jump(server: StoreServer) -> None:
    """When a drift of 1 % begins, the server's clock does not jump. Then it gains or loses ten milliseconds per
    second."""
    clock = server.world.scheduler
    clock.now_ns = 3_000 * MS
    before_us = server.wall_us()
    server.strike(Fault("drift", "store", 3_000, 10_000))
    assert server.wall_us() == before_us
    clock.now_ns = 4_000 * MS
    assert server.wall_us() == before_us + 1_010_000
    server.strike(Fault("drift", "store", 4_000, -10_000))
    clock.now_ns = 5_000 * MS
    assert server.wall_us() == before_us + 1_010_000 + 990_000


def test_a_drift_is_told_in_millionths() -> None:
    """The text of a drift fault names the unit, parts per million (ppm)."""
    assert str(Fault("drift", "store", 7, -500)) == "drift store at 7 ms, -500 ppm"
    assert set(CLOCKS) == {"drift"}
