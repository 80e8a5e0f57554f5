"""A bare event loop on virtual time: the least that a simulation in Python does.

The loop takes the earliest event from a heap, calls its function, and adds the next event. It depends on nothing of
this project, so a slower simulator cannot make it slower too.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from heapq import heappop, heappush

_PENDING = 20  # events in the heap at any time, as many as a history has messages


def per_second(events: int, processors: int) -> float:
    """How many events one loop runs per second of processor time, while `processors` loops run at once.

    Each loop runs in a process of its own. The result is the mean of the loops' rates.
    """
    with ProcessPoolExecutor(processors, multiprocessing.get_context("spawn")) as pool:
        rates = list(pool.map(run, [events] * processors))
    return sum(rates) / processors


def run(events: int) -> float:
    """Run this number of events in this process. Returns events per second of processor time."""
    called = 0

    def count() -> None:
        nonlocal called
        called += 1

    queue = [(number, number, count) for number in range(_PENDING)]  # a sorted list is a heap
    began_s = time.process_time()
    for number in range(_PENDING, _PENDING + events):
        due, _, call = heappop(queue)
        call()
        heappush(queue, (due + 1 + number * 7919 % 13, number, call))
    took_s = time.process_time() - began_s
    assert called == events
    return events / took_s
