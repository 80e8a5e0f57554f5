"""Measures the CPU time that a timer costs, in nanoseconds, with two mixes (sets of deadlines).

The mix "uniform": timers are due after 1 ms to 1 h. The mix "constant": all timers are due after 200 ms, as request
timeouts are, and 50 of them begin in each millisecond.

Schedule and expire: a subject gets n timers. Then time passes in a thousand steps until all are due.

90 % cancelled: a program of requests, in which n timers are live at any time. Each request schedules one timer. Nine of
ten requests cancel their timer, at a moment that is spread evenly over its delay; one of ten lets it expire. In a step
of the program ten requests begin, time moves on, and the due timers are taken. A handle is kept until its request ends.
The loop that runs the program costs the same for all subjects; it is measured without a timer and subtracted. The
program warms up with four requests for each live timer, which takes longer than any timer lives. Then it measures so
many requests that rare work, such as compactions and garbage collections, has its share.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.wheel.subjects import TASK

Mix = Literal["uniform", "constant"]
HOUR_MS = 3_600_000
TIMEOUT_MS = 200
_STEPS = 1_000
_A_MS = 50  # in the mix "constant", this many timers begin in each millisecond
_AT_A_STEP = 10  # requests that begin in a step
_WARM_UP = 4  # requests that warm up, for each live timer
_MEASURED = 100_000  # requests that are measured, but at least two for each live timer


def deadlines_ms(mix: Mix, count: int, seed: int) -> list[int]:
    """The deadlines of `count` timers, in ms."""
    if mix == "uniform":
        rng = random.Random(seed)
        return [rng.randint(1, HOUR_MS) for _ in range(count)]
    return [TIMEOUT_MS + number // _A_MS for number in range(count)]


def moments_ms(due_ms: Sequence[int]) -> list[int]:
    """The times, in ms, to which the clock moves step by step until all timers are due."""
    last_ms = max(due_ms)
    return [last_ms * step // _STEPS for step in range(1, _STEPS + 1)]


def fill_and_drain(subject: Any, due_ms: Sequence[int], steps_ms: Sequence[int]) -> tuple[float, float | None]:
    """Measure the nanoseconds to schedule a timer, and to let it expire; None where this cannot be measured."""
    gc.collect()
    gc.freeze()  # garbage collections skip what other subjects left behind
    try:
        begun_ns = time.thread_time_ns()
        handles = subject.fill(due_ms)
        filled_ns = time.thread_time_ns() - begun_ns
        drained_ns = None
        if hasattr(subject, "drain"):
            del handles
            begun_ns = time.thread_time_ns()
            fired = subject.drain(steps_ms)
            drained_ns = time.thread_time_ns() - begun_ns
            assert fired == len(due_ms), f"{fired} of {len(due_ms)} expired"
        subject.close()
    finally:
        gc.unfreeze()
    return filled_ns / len(due_ms), None if drained_ns is None else drained_ns / len(due_ms)


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of a program. The first `warm_up` of them are not measured.

    Each step has the time in ms, the deadlines to schedule, the requests to cancel, and the requests that expire.
    `requests`: how many requests are measured.
    """

    steps: list[tuple[int, list[int], list[int], list[int]]]
    warm_up: int
    requests: int


def program(mix: Mix, live: int, seed: int) -> Program:
    """Make the program: first the requests that warm up, then the requests that are measured."""
    rng = random.Random(seed)
    warm_up, measured = _WARM_UP * live, max(_MEASURED, 2 * live)
    count = warm_up + measured
    timeouts_ms = [rng.randint(1, HOUR_MS) if mix == "uniform" else TIMEOUT_MS for _ in range(count)]
    cancelled = [rng.random() < 0.9 for _ in range(count)]
    lives_ms = [ms * rng.random() if gone else ms for ms, gone in zip(timeouts_ms, cancelled, strict=True)]
    gap_ms = sum(lives_ms) / count / live
    dues_ms = [int(n * gap_ms) + timeouts_ms[n] for n in range(count)]
    cancels = deque(sorted((n * gap_ms + lives_ms[n], n) for n in range(count) if cancelled[n]))
    expiries: deque[tuple[float, int]] = deque(sorted((dues_ms[n], n) for n in range(count) if not cancelled[n]))
    steps = []
    for first in range(0, count, _AT_A_STEP):
        last = first + _AT_A_STEP
        now_ms = last * gap_ms
        steps.append((int(now_ms), dues_ms[first:last], _ended(cancels, now_ms), _ended(expiries, int(now_ms) + 1)))
    return Program(steps, warm_up // _AT_A_STEP, measured)


def _ended(ends: deque[tuple[float, int]], before_ms: float) -> list[int]:
    """Remove and return the requests that end before `before_ms`. `ends` is sorted by time."""
    ended = []
    while ends and ends[0][0] < before_ms:
        ended.append(ends.popleft()[1])
    return ended


def run_program(timer: Any, plan: Program) -> float:
    """Measure the nanoseconds that a request costs, with its share of the loop. `timer` None: the loop alone."""
    if timer is None:
        return _run_loop(plan)
    handles: list[Any] = []
    keep, schedule, advance = handles.append, timer.schedule, timer.advance
    gc.collect()
    gc.freeze()
    try:
        begun_ns = 0
        for number, (now_ms, due_ms, cancels, expiries) in enumerate(plan.steps):
            if number == plan.warm_up:
                begun_ns = time.thread_time_ns()
            for deadline_ms in due_ms:
                keep(schedule(TASK, deadline_ms))
            for n in cancels:
                handles[n].cancel()
                handles[n] = None
            advance(now_ms)
            for n in expiries:
                handles[n] = None
        return (time.thread_time_ns() - begun_ns) / plan.requests
    finally:
        gc.unfreeze()


def _run_loop(plan: Program) -> float:
    handles: list[Any] = []
    keep = handles.append
    begun_ns = 0
    for number, (_, due_ms, cancels, expiries) in enumerate(plan.steps):
        if number == plan.warm_up:
            begun_ns = time.thread_time_ns()
        for _ in due_ms:
            keep(None)
        for n in cancels:
            handles[n] = None
        for n in expiries:
            handles[n] = None
    return (time.thread_time_ns() - begun_ns) / plan.requests


class _Slotted:
    __slots__ = ("a", "b", "c", "d", "e")


def floor_ns(due_ms: Sequence[int]) -> float:
    """Measure the floor, which no timer in C can undercut, in nanoseconds.

    The floor is the time to call a C function with two arguments, and to create an object with slots and keep it.
    """
    from operator import is_

    gc.collect()
    gc.freeze()
    try:
        begun_ns = time.thread_time_ns()
        called = [is_(TASK, deadline_ms) for deadline_ms in due_ms]
        made = [_Slotted() for _ in due_ms]
        with_loops_ns = time.thread_time_ns() - begun_ns
        begun_ns = time.thread_time_ns()
        looped = [None for _ in due_ms]
        loop_ns = time.thread_time_ns() - begun_ns
    finally:
        gc.unfreeze()
    assert len(called) == len(made) == len(looped)
    return (with_loops_ns - loop_ns) / len(due_ms)
