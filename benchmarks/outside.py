"""Runs measuring tasks in processes beside the dispatcher's process, so that they share no lock with the dispatcher.

A task runs in a fresh interpreter. Through a pipe it sends "ready" after its setup, and its result at the end. All
processes run on one machine and use its wall clock, which the server's TIME reads too.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.messages import message, push_items
from benchmarks.processor import Processor
from benchmarks.server import NAMESPACE
from retry_topic.message.encoding import to_fields
from wheel_sched.store import open_store
from wheel_sched.store.redis.backend import client_for
from wheel_sched.store.redis.deferred import DeferredConnection

if TYPE_CHECKING:
    import redis

_SILENCE_MS = 5_000  # after this silence a receiver reports what it has
_ASK_PAUSE_NS = 500_000
_NS_PER_MS = 1_000_000


class Arrival(NamedTuple):
    """The arrival of a message: its number, its due time, when the server added it, and when the receiver had it."""

    number: int
    due_ms: int
    entry_ms: int
    arrived_ns: int

    @property
    def lateness_ms(self) -> float:
        return self.arrived_ns / _NS_PER_MS - self.due_ms

    @property
    def early(self) -> bool:
        """Whether the message came before its due time, by the server's or the receiver's clock."""
        return self.entry_ms < self.due_ms or self.lateness_ms < 0


class Waits(NamedTuple):
    """The longest times, in ms, that the task `ask_the_time` measured.

    `wait`: from a question until the server read it, by the server's clock. `stall`: the part of the wait in which the
    server worked, see `benchmarks.stalls`. `withheld`: the part in which the server had no processor. `idle`: the wait
    at a server that nobody else calls. `oversleep`: how much too long the task slept before a question.
    """

    wait: float
    stall: float
    withheld: float
    idle: float
    oversleep: float


class Outside:
    """A task in a separate process. When the constructor returns, the task is ready."""

    def __init__(self, task: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit locks that threads hold
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=task, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def ask(self, question: Any) -> Any:
        """Send a question and wait for the answer; EOFError if the task died."""
        self._pipe.send(question)
        return self._pipe.recv()

    def stop(self) -> None:
        """Stop a task that has no end of its own, such as `ask_the_time`."""
        self._pipe.send("stop")

    def result(self) -> Any:
        """Wait for the result; EOFError if the task died."""
        found = self._pipe.recv()
        self._process.join()
        return found


def receive(pipe: Connection, url: str, stream: str, count: int) -> None:
    """Task: read `count` entries of a stream. The result is a list of `Arrival`."""
    arrivals: list[Arrival] = []
    client = client_for(url)
    pipe.send("ready")
    last: bytes = b"0"
    while len(arrivals) < count and (entries := _next_entries(client, stream, last, _SILENCE_MS)):
        now_ns = time.time_ns()
        last = entries[-1][0]
        arrivals += [_arrival(entry, now_ns) for entry in entries]
    pipe.send(arrivals)


def visit(pipe: Connection, url: str, stream: str, samples: int, pause_ms: tuple[int, int], bare: bool) -> None:
    """Task: again and again schedule a message that is due now, wait until it is in the stream, and pause.

    `pause_ms`: the shortest and the longest pause. `bare`: add each message to the stream without a store. The result
    is a list of `Arrival`.
    """
    client = client_for(url)
    store = None if bare else open_store(url, namespace=NAMESPACE)
    arrivals: list[Arrival] = []
    pauses = random.Random(7)
    last: bytes = b"0"
    pipe.send("ready")
    for number in range(samples):
        time.sleep(pauses.uniform(*pause_ms) / 1000)  # in this random pause the dispatcher goes to sleep again
        due_ms = time.time_ns() // _NS_PER_MS
        if store is None:
            add_bare(client, stream, due_ms, number)
        else:
            store.schedule(push_items([f"visit.{number}"], [due_ms], stream, number))
        entries = _next_entries(client, stream, last, _SILENCE_MS)
        now_ns = time.time_ns()
        if not entries:
            break
        last = entries[-1][0]
        arrivals.append(_arrival(entries[-1], now_ns))
    pipe.send(arrivals)


def add_bare(client: redis.Redis, stream: str, due_ms: int, number: int) -> None:
    """For the baselines: add the stream entry that the dispatcher would add for a message, and do nothing else."""
    client.execute_command("XADD", stream, "*", *to_fields(message(due_ms, number, stream)))


def ask_the_time(pipe: Connection, url: str, pid: int, idle_url: str) -> None:
    """Task: ask the server of process `pid` and an idle server for their time every 0.5 ms, until `stop`.

    Both servers get the question at the same moment. The answer is the time at which the server read the question. So
    no figure includes the time that this process needs to read the answer. The result is `Waits`.
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
        wait_ns = max(0, _answered_ns(server) - asked_ns)
        worked_ns = processor.worked_ns() - before[1]
        withheld_ns = min(wait_ns, processor.withheld_ns() - before[0])
        idle_ns = _answered_ns(idle) - asked_ns
        found_ns = wait_ns, min(wait_ns - withheld_ns, worked_ns), withheld_ns, idle_ns, overslept_ns
        waits.append(Waits(*(ns / _NS_PER_MS for ns in found_ns)))
        slept_from_ns = time.perf_counter_ns()
        time.sleep(_ASK_PAUSE_NS / 1e9)  # a pause, so that the questions are no load
        overslept_ns = time.perf_counter_ns() - slept_from_ns - _ASK_PAUSE_NS
    pipe.send(Waits(*map(max, zip(*waits, strict=True))))


def _answered_ns(line: DeferredConnection) -> int:
    """The time in the server's answer, in nanoseconds."""
    (reply,) = line.replies()
    seconds, micros = reply
    return (int(seconds) * 1_000_000 + int(micros)) * 1_000


def _next_entries(client: redis.Redis, stream: str, last: bytes, block_ms: int) -> list[Any]:
    reply: Any = client.xread({stream: last}, count=1000, block=block_ms)
    return reply[0][1] if reply else []


def _arrival(entry: tuple[bytes, dict[bytes, bytes]], arrived_ns: int) -> Arrival:
    entry_id, fields = entry
    return Arrival(int(fields[b"n"]), int(fields[b"due"]), int(entry_id.partition(b"-")[0]), arrived_ns)
