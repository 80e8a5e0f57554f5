"""`python -m benchmarks store`: how fast the delay store is, and how much memory it takes.

`schedule_vs_zadd` compares `DelayStore.schedule` (duplicate check, record, counters, repeatable answer) with a
pipelined ZADD of the same ids and due times by the same client, without bodies. The figure is a ratio, so it hardly
depends on the machine. `lifecycle_msgs_per_s` is the rate of one client that schedules, claims and settles 500 messages
a call. `bytes_per_message` is the growth of the server's `used_memory` per message. The module `stalls` explains
`max_stall_ms` and `stall_vs_script`: how long the server makes another client wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.messages import BATCH, ids, in_batches, plain_items
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, ratios
from benchmarks.server import BenchServer, bench_server, surroundings
from benchmarks.stalls import measure_stalls
from wheel_sched.store import Done

_HOUR_MS = 3_600_000

FIGURES = (
    Figure(
        "schedule_vs_zadd",
        "x",
        "rate of our schedule divided by the rate of a bare pipelined ZADD",
        at_least=0.8,
        baseline="baseline.zadd_msgs_per_s",
    ),
    Figure("schedule_msgs_per_s", "msg/s", "our schedule, 500 a call"),
    Figure("lifecycle_msgs_per_s", "msg/s", "schedule, claim and settle, 500 a call, one client"),
    Figure("bytes_per_message", "bytes", "server memory per waiting message with a body of 100 bytes", at_most=260),
    Figure(
        "stall_vs_script",
        "x",
        "longest stall of another client while a backlog drains, divided by that while scripts of 1 ms run",
        at_most=3,
        baseline="baseline.script_stall_ms",
    ),
    Figure("max_stall_ms", "ms", "longest time for which the server's work made another client wait"),
    Figure("max_wait_ms", "ms", "the whole of the longest wait, also while the server had no processor"),
    Figure("max_turn_ms", "ms", "longest turn of the server's event loop, by its own count"),
    Figure("max_script_ms", "ms", "longest script in the server's slow log"),
    Figure("baseline.script_stall_ms", "ms", "baseline: longest stall while another client runs scripts of 1 ms"),
    Figure("baseline.idle_wait_ms", "ms", "baseline: longest wait for a server that nobody else calls"),
    Figure("baseline.oversleep_ms", "ms", "baseline: how much too long the client slept, without a server"),
    Figure("baseline.zadd_msgs_per_s", "msg/s", "baseline: a bare pipelined ZADD, 500 a round trip"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds that measure rates. Defaults to 7.
        messages_per_round: messages in each of these rounds. Defaults to 50,000.
        messages: messages that wait while memory is measured. Defaults to 1 M.
        stall_rounds: rounds that measure stalls, for each of the two ways to drain. Defaults to 5.
        stall_messages: messages due at the same millisecond. Defaults to 100,000.
    """

    rounds: int = 7
    messages_per_round: int = 50_000
    messages: int = 1_000_000
    stall_rounds: int = 5
    stall_messages: int = 100_000


FULL = Sizes()
QUICK = Sizes(rounds=5, messages_per_round=10_000, messages=200_000)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    rates = Measured(sizes.rounds, sizes.messages_per_round, "messages")
    keys = ("schedule_vs_zadd", "schedule_msgs_per_s", "lifecycle_msgs_per_s", "baseline.zadd_msgs_per_s")
    return dict.fromkeys(keys, rates)


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(3 * sizes.rounds + 1 + 3 * sizes.stall_rounds)
    with bench_server() as server:
        names = ids(sizes.messages_per_round)
        runs: dict[str, Callable[[], float]] = {
            "zadd": partial(zadd_rate, server, names),
            "schedule": partial(schedule_rate, server, names),
            "lifecycle": partial(lifecycle_rate, server, names),
        }
        rates = interleaved(sizes.rounds, runs, narration)
        narration.step(f"memory of {sizes.messages:,} messages")
        memory = bytes_per_message(server, sizes.messages)
        stalls, machine = measure_stalls(server, sizes.stall_messages, sizes.stall_rounds, narration)
        around = surroundings(server, sizes.rounds)
    narration.close()
    schedule_vs_zadd = over_rounds(ratios(rates["schedule"], rates["zadd"]))
    stalls["spread"]["schedule_vs_zadd"] = schedule_vs_zadd
    return {
        "schedule_vs_zadd": schedule_vs_zadd["median"],
        "schedule_msgs_per_s": round(median(rates["schedule"])),
        "lifecycle_msgs_per_s": round(median(rates["lifecycle"])),
        "bytes_per_message": round(memory, 1),
        "messages": sizes.messages,
        **stalls,
        **around,
        "baseline": {"zadd_msgs_per_s": round(median(rates["zadd"])), **machine},
    }


def zadd_rate(server: BenchServer, names: Sequence[str]) -> float:
    """How many messages per second a bare pipelined ZADD stores."""
    server.client.flushall()
    due_ms = _in_an_hour_ms()
    begun = time.perf_counter()
    for at in range(0, len(names), BATCH):
        pipeline = server.client.pipeline(transaction=False)
        for name in names[at : at + BATCH]:
            pipeline.execute_command("ZADD", "bare", due_ms, name)
        pipeline.execute()
    return len(names) / (time.perf_counter() - begun)


def schedule_rate(server: BenchServer, names: Sequence[str]) -> float:
    """How many messages per second `DelayStore.schedule` stores. All messages are new."""
    store = server.empty_store()
    items = plain_items(names, _in_an_hour_ms())
    accepted = 0
    begun = time.perf_counter()
    for batch in in_batches(items):
        accepted += store.schedule(batch).accepted
    took_s = time.perf_counter() - begun
    assert accepted == len(names), f"{accepted} of {len(names)} were stored"
    return len(names) / took_s


def lifecycle_rate(server: BenchServer, names: Sequence[str]) -> float:
    """How many messages per second one client schedules, claims and settles."""
    store = server.empty_store()
    items = plain_items(names, 0)
    settled = 0
    begun = time.perf_counter()
    for batch in in_batches(items):
        store.schedule(batch)
        claim = store.claim(BATCH)
        store.settle(claim, [Done(item.id) for item in claim.items])
        settled += len(claim.items)
    took_s = time.perf_counter() - begun
    assert settled == len(names), f"{settled} of {len(names)} were settled"
    return len(names) / took_s


def bytes_per_message(server: BenchServer, count: int) -> float:
    """How many bytes the server's memory grows for each message, with indexes and counters."""
    store = server.empty_store()
    before = server.used_memory()
    due_ms = _in_an_hour_ms()
    for part in range(0, count, 50_000):  # this process never holds all items at once
        for batch in in_batches(plain_items(ids(min(50_000, count - part), str(part)), due_ms)):
            store.schedule(batch)
    return (server.used_memory() - before) / count


def _in_an_hour_ms() -> int:
    return time.time_ns() // 1_000_000 + _HOUR_MS
