"""Processes beside the dispatcher's: whoever judges lateness, wake-ups and stalls shares no lock with what it judges.

A task runs in a fresh interpreter and speaks through a pipe: "ready" once it is set up, its result at the end. Clocks
are wall clocks of one machine, the same that the server's TIME reads.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.messages import push_items
from benchmarks.processor import Processor
from benchmarks.server import NAMESPACE
from wheel_sched.store import open_store
from wheel_sched.store.redis.backend import client_for
from wheel_sched.store.redis.deferred import DeferredConnection

if TYPE_CHECKING:
    import redis

_SILENCE_MS = 5_000  # a receiver that hears nothing for so long reports what it has
_ASK_PAUSE_NS = 500_000
_NS_PER_MS = 1_000_000


class Arrival(NamedTuple):
    """A message at its receiver: its number, its due, when the server took it in, when the receiver had it."""

    number: int
    due_ms: int
    entry_ms: int
    arrived_ns: int

    @property
    def lateness_ms(self) -> float:
        return self.arrived_ns / _NS_PER_MS - self.due_ms

    @property
    def early(self) -> bool:
        """Out before its due, by the server's clock or the receiver's."""
        return self.entry_ms < self.due_ms or self.lateness_ms < 0


class Waits(NamedTuple):
    """What an asker met with at the longest, in ms.

    `wait`: from its question to when the server came to it, by the server's clock. `stall`: how much of that was the
    server's work, see `benchmarks.stalls`. `withheld`: for how long the server had no processor meanwhile. `idle`: as
    `wait`, at a server that nobody else calls. `oversleep`: how much longer the asker slept than it wanted.
    """

    wait: float
    stall: float
    withheld: float
    idle: float
    oversleep: float


class Outside:
    """A task in a process of its own; started and ready when made."""

    def __init__(self, task: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take threads' locks along
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=task, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def ask(self, question: Any) -> Any:
        """Wait for what a task says to a question; EOFError when it died."""
        self._pipe.send(question)
        return self._pipe.recv()

    def stop(self) -> None:
        """Ask a task that runs until told so to end."""
        self._pipe.send("stop")

    def result(self) -> Any:
        """Wait for what the task found; EOFError when it died."""
        found = self._pipe.recv()
        self._process.join()
        return found


def receive(pipe: Connection, url: str, stream: str, count: int) -> None:
    """Read `count` entries of a stream as they come: a list of `Arrival`."""
    arrivals: list[Arrival] = []
    client = client_for(url)
    pipe.send("ready")
    last: bytes = b"0"
    while len(arrivals) < count and (entries := _next_entries(client, stream, last, _SILENCE_MS)):
        now_ns = time.time_ns()
        last = entries[-1][0]
        arrivals += [_arrival(entry, now_ns) for entry in entries]
    pipe.send(arrivals)


def visit(pipe: Connection, url: str, stream: str, samples: int, pause_ms: tuple[int, int]) -> None:
    """Schedule one message that is due now, wait for it, pause, again: a list of `Arrival`."""
    store, client = open_store(url, namespace=NAMESPACE), client_for(url)
    arrivals: list[Arrival] = []
    pauses = random.Random(7)
    last: bytes = b"0"
    pipe.send("ready")
    for number in range(samples):
        time.sleep(pauses.uniform(*pause_ms) / 1000)  # the dispatcher falls asleep again, at no fixed beat
        store.schedule(push_items([f"visit.{number}"], [time.time_ns() // _NS_PER_MS], stream, number))
        entries = _next_entries(client, stream, last, _SILENCE_MS)
        now_ns = time.time_ns()
        if not entries:
            break
        last = entries[-1][0]
        arrivals.append(_arrival(entries[-1], now_ns))
    pipe.send(arrivals)


def ask_the_time(pipe: Connection, url: str, pid: int, idle_url: str) -> None:
    """Ask a server (`pid`) and an idle one for their time every 0.5 ms until told to stop: `Waits`.

    Both are asked at the same moment, and what they answer says when they came to it: how long this process then slept
    before it read that is in none of the figures.
    """
    server, idle = DeferredConnection(client_for(url)), DeferredConnection(client_for(idle_url))
    processor = Processor(pid)
    waits: list[Waits] = []
    pipe.send("ready")
    overslept_ns = 0
    while not waits or not pipe.poll():
        before = processor.withheld_ns(), processor.worked_ns()
        asked_ns = time.time_ns()
        server.send([("TIME",)])
        idle.send([("TIME",)])
        wait_ns = max(0, _told_ns(server) - asked_ns)
        worked_ns = processor.worked_ns() - before[1]
        withheld_ns = min(wait_ns, processor.withheld_ns() - before[0])
        idle_ns = _told_ns(idle) - asked_ns
        found_ns = wait_ns, min(wait_ns - withheld_ns, worked_ns), withheld_ns, idle_ns, overslept_ns
        waits.append(Waits(*(ns / _NS_PER_MS for ns in found_ns)))
        answered_ns = time.perf_counter_ns()
        time.sleep(_ASK_PAUSE_NS / 1e9)  # so that it asks, and does not load
        overslept_ns = time.perf_counter_ns() - answered_ns - _ASK_PAUSE_NS
    pipe.send(Waits(*map(max, zip(*waits, strict=True))))


def _told_ns(line: DeferredConnection) -> int:
    """The time that a server tells, which it took when it came to the question."""
    (reply,) = line.replies()
    seconds, micros = reply
    return (int(seconds) * 1_000_000 + int(micros)) * 1_000


def _next_entries(client: redis.Redis, stream: str, last: bytes, block_ms: int) -> list[Any]:
    reply: Any = client.xread({stream: last}, count=1000, block=block_ms)
    return reply[0][1] if reply else []


def _arrival(entry: tuple[bytes, dict[bytes, bytes]], arrived_ns: int) -> Arrival:
    entry_id, fields = entry
    return Arrival(int(fields[b"n"]), int(fields[b"due"]), int(entry_id.partition(b"-")[0]), arrived_ns)
