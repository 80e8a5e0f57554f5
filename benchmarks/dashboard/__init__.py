"""`python -m benchmarks dashboard`: how long the pages take over millions of items, and what they cost the store.

The dashboard runs as users start it, `wheel-sched dashboard`, in a process of its own. A visitor asks for each page
several times. `first_byte_ms` is the time from the request to the first byte of the answer, for the slowest page.
`first_byte_vs_empty` divides it by the same page over an empty namespace in the same run: a page that scanned the store
would be thousands of times slower. `stall_ms` is the longest wait of another client of the server while the pages are
asked for (see `benchmarks.stalls`). `baseline.quiet_stall_ms` is the longest wait in an equal time on the same full
server, while nobody asks for a page. `dispatch_vs_alone` is the rate of a dispatcher that drains a burst while ten
viewers watch the live overview, divided by its rate without viewers. A burst takes some seconds, so that each has
several updates of the overview. The bursts have a server of their own, because a server that has just deleted millions
of items is still freeing their memory.

Two gates are times and not ratios, because they are about what a person notices: 200 ms until a page begins to appear,
and 5 ms for which a page may hold up the store.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.dashboard.filling import fill
from benchmarks.dashboard.viewing import ASSETS, burst_rate, quiet_stall_ms, running_dashboard, visited
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, ratios
from benchmarks.server import bench_server, surroundings
from benchmarks.stalls import scripts

FIGURES = (
    Figure(
        "first_byte_ms.max",
        "ms",
        "from the request to the first byte of the answer, the slowest page",
        at_most=200,
        baseline="baseline.ping_ms",
    ),
    Figure(
        "first_byte_vs_empty",
        "x",
        "the page that slows down most, divided by the same page over an empty namespace",
        baseline="baseline.empty_ms",
    ),
    Figure(
        "stall_vs_script",
        "x",
        "longest stall of another client while pages are asked for, divided by that while scripts of 1 ms run",
        baseline="baseline.script_stall_ms",
    ),
    Figure(
        "stall_ms",
        "ms",
        "longest time for which the pages made another client of the server wait",
        at_most=5,
        baseline="baseline.quiet_stall_ms",
    ),
    Figure(
        "dispatch_vs_alone",
        "x",
        "rate of a burst while ten viewers watch the overview, divided by that without viewers",
        at_least=0.95,
        baseline="baseline.alone_msgs_per_s",
    ),
    Figure("assets_gzip_kb", "kB", "scripts and style sheet, compressed", at_most=60),
    Figure("pages", "pages", "pages that were asked for"),
    Figure("waiting", "messages", "messages that waited"),
    Figure("dead", "letters", "dead letters"),
    Figure("baseline.ping_ms", "ms", "baseline: a bare PING to the same server, 99 of 100"),
    Figure("baseline.empty_ms", "ms", "baseline: that page over an empty namespace"),
    Figure("baseline.script_stall_ms", "ms", "baseline: longest stall while another client runs scripts of 1 ms"),
    Figure("baseline.quiet_stall_ms", "ms", "baseline: longest stall in an equal time, while nobody asks for a page"),
    Figure("baseline.alone_msgs_per_s", "msg/s", "baseline: a burst without viewers"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        waiting: messages that wait. Defaults to 5 M.
        dead: dead letters, in a thousand groups. Defaults to 1 M.
        visits: how often each page is asked for. Defaults to 20.
        rounds: rounds of bursts with and without viewers. Defaults to 7.
        burst: messages in a burst. Defaults to 200,000.
        viewers: open overviews beside a burst. Defaults to 10.
    """

    waiting: int = 5_000_000
    dead: int = 1_000_000
    visits: int = 20
    rounds: int = 7
    burst: int = 200_000
    viewers: int = 10


FULL = Sizes()
QUICK = Sizes(waiting=500_000, dead=100_000, visits=10, rounds=5, burst=50_000)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    visits = Measured(1, sizes.visits, "visits of each page")
    bursts = Measured(sizes.rounds, sizes.burst, "messages")
    keys = ("first_byte_ms", "first_byte_vs_empty", "stall_vs_script", "stall_ms", "baseline.quiet_stall_ms")
    return dict.fromkeys(keys, visits) | dict.fromkeys(("dispatch_vs_alone", "baseline.alone_msgs_per_s"), bursts)


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(5 + 2 * sizes.rounds)
    with bench_server() as server, bench_server() as idle:
        narration.step("scripts of 1 ms")
        script_stall_ms = scripts(server, idle).asker.stall  # first: it empties the server
        narration.step("pages over an empty namespace")
        server.empty_store()
        with running_dashboard(server.url) as address:
            empty = visited(server, idle, address, sizes.visits)
        narration.step(f"{sizes.waiting:,} messages that wait, {sizes.dead:,} dead letters")
        server.empty_store()
        fill(server.url, sizes.waiting, sizes.dead)
        narration.step("pages over them")
        with running_dashboard(server.url) as address:
            full = visited(server, idle, address, sizes.visits)
        narration.step("no pages over them")
        unvisited_ms = quiet_stall_ms(server, idle, full.took_s)
    with bench_server() as server:
        server.empty_store()
        with running_dashboard(server.url) as address:
            runs: dict[str, Callable[[], float]] = {
                "alone": partial(burst_rate, server, sizes.burst),
                "viewed": partial(burst_rate, server, sizes.burst, address, sizes.viewers),
            }
            rates = interleaved(sizes.rounds, runs, narration)
        around = surroundings(server, sizes.rounds)
    narration.close()
    slower = {page: slowest / empty.pages[page] for page, slowest in full.pages.items() if page in empty.pages}
    worst = max(slower, key=lambda page: slower[page])
    over_alone = over_rounds(ratios(rates["viewed"], rates["alone"]))
    return {
        "first_byte_ms": {"max": round(max(full.pages.values()), 2)},
        "first_byte_by_page_ms": {page: round(slowest, 2) for page, slowest in full.pages.items()},
        "first_byte_vs_empty": round(slower[worst], 2),
        "slowest_growth": worst,
        "stall_ms": full.stall_ms,
        "stall_vs_script": round(full.stall_ms / script_stall_ms, 3),
        "dispatch_vs_alone": over_alone["median"],
        "spread": {"dispatch_vs_alone": over_alone},
        "assets_gzip_kb": round(sum(len(gzip.compress(path.read_bytes(), 9)) for path in ASSETS) / 1000, 1),
        "pages": len(full.pages),
        "waiting": sizes.waiting,
        "dead": sizes.dead,
        **around,
        "baseline": {
            "ping_ms": full.ping_ms,
            "empty_ms": round(empty.pages[worst], 2),
            "script_stall_ms": round(script_stall_ms, 3),
            "quiet_stall_ms": unvisited_ms,
            "alone_msgs_per_s": round(median(rates["alone"])),
        },
    }
