"""Lateness, wake-up and idleness of a dispatcher, measured from outside.

Lateness: another process, the receiver, reads the stream with a blocking XREAD. When it has a message, it reads its
clock and subtracts the due time in the message. So the figure includes the time of the dispatcher, of the server and of
the receiver's own wake-up. A message is early if the id of its stream entry or the receiver's clock is before its due
time.

Wake-up: the dispatcher sleeps, because its next message is due in an hour. Another process stores a message that is due
now, and measures its lateness. Its due time is the current millisecond, rounded down, so up to 1 ms of the figure has
passed before the call began.

Idleness: how many commands the server counts in ten seconds. One dispatcher has an empty store. At the same time,
another has 1,000 messages that are due in an hour, on a second server.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from benchmarks.messages import NullPublisher, ids, in_batches, plain_items, push_items
from benchmarks.outside import Arrival, Outside, add_bare, receive, visit
from benchmarks.rounds import spread
from benchmarks.server import BenchServer, bench_server
from wheel_sched.dispatcher import Dispatcher, PushTarget

_STREAM = "arrivals"
_PUSH_TO = PushTarget(create=True)
_HOUR_MS = 3_600_000
_BARE_LEAD_MS = 100
_LEAD_MS = 1_000  # time to store the messages
_SETTLE_S = 1.0  # within this time the dispatcher reads the next due times and sleeps
_IDLE_MESSAGES = 1_000


class Timed(NamedTuple):
    """The lateness that a receiver measured, in ms, and how many messages were early or lost."""

    lateness_ms: dict[str, float]
    early: int
    lost: int


def lateness(server: BenchServer, count: int, over_s: float) -> Timed:
    """Measure the lateness of `count` messages that are due evenly over `over_s` seconds and are pushed to a stream."""
    store = server.empty_store()
    receiver = Outside(receive, server.url, _STREAM, count)
    with Dispatcher(store, NullPublisher(), push=_PUSH_TO):
        start_ms = time.time_ns() // 1_000_000 + _LEAD_MS
        dues_ms = [start_ms + int(number * over_s * 1000 / count) for number in range(count)]
        for batch in in_batches(push_items(ids(count), dues_ms, _STREAM)):
            stored_us = store.schedule(batch).now_us
        assert stored_us // 1000 < start_ms, "this machine is too slow to store the messages before they are due"
        return _timed(receiver.result(), count)


def bare_lateness(server: BenchServer, count: int, over_s: float) -> Timed:
    """The baseline of `lateness`: a thread sleeps until each message is due and adds it to the stream itself."""
    server.client.flushall()
    receiver = Outside(receive, server.url, _STREAM, count)
    start_ms = time.time_ns() // 1_000_000 + _BARE_LEAD_MS
    for number in range(count):
        due_ms = start_ms + int(number * over_s * 1000 / count)
        left_s = due_ms / 1000 - time.time()
        if left_s > 0:
            time.sleep(left_s)  # until it is due
        while time.time_ns() < due_ms * 1_000_000:  # a sleep may end early by the wall clock
            pass
        add_bare(server.client, _STREAM, due_ms, number)
    return _timed(receiver.result(), count)


def wake_up(server: BenchServer, samples: int, pause_ms: tuple[int, int] = (20, 100)) -> Timed:
    """Measure the wake-up: another process stores due messages, one at a time, while the dispatcher sleeps.

    `pause_ms`: the shortest and the longest pause between two messages.
    """
    store = server.empty_store()
    store.schedule(push_items(["later"], [time.time_ns() // 1_000_000 + _HOUR_MS], _STREAM))
    with Dispatcher(store, NullPublisher(), push=_PUSH_TO):
        return _timed(Outside(visit, server.url, _STREAM, samples, pause_ms, False).result(), samples)


def bare_wake_up(server: BenchServer, samples: int, pause_ms: tuple[int, int] = (20, 100)) -> Timed:
    """The baseline of `wake_up`: the other process adds its messages to the stream itself; there is no dispatcher."""
    server.client.flushall()
    return _timed(Outside(visit, server.url, _STREAM, samples, pause_ms, True).result(), samples)


def idle_commands(seconds: float) -> dict[str, int]:
    """How many commands idle dispatchers send in `seconds`: with an empty store, and with messages due in an hour."""
    waiting_for = {"empty": 0, "waiting": _IDLE_MESSAGES}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(bench_server()) for name in waiting_for}
        for name, count in waiting_for.items():
            store = servers[name].empty_store()
            for batch in in_batches(plain_items(ids(count), time.time_ns() // 1_000_000 + _HOUR_MS)):
                store.schedule(batch)
            stack.enter_context(Dispatcher(store, NullPublisher()))
        time.sleep(_SETTLE_S)
        before = {name: server.commands() for name, server in servers.items()}
        time.sleep(seconds)  # the measurement: no command may be sent
        after = {name: server.commands() for name, server in servers.items()}
    return {name: sum(after[name].values()) - sum(before[name].values()) for name in servers}


def _timed(arrivals: list[Arrival], count: int) -> Timed:
    late_ms = [arrival.lateness_ms for arrival in arrivals]
    early = sum(arrival.early for arrival in arrivals)
    return Timed(spread(late_ms), early, count - len({arrival.number for arrival in arrivals}))
