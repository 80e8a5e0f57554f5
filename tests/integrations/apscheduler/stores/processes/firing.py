"""Jobs that report each run to a server: the occurrence, the process, the time. The test reads these reports."""

from __future__ import annotations

import os
import time

import redis
from wheel_sched_apscheduler import current_occurrence

FIRED = "fired"
TURNS = "turns"  # hash: how often each process has run `take_turn`
OPEN = "open"  # while it is missing, `record_and_wait` waits
AHEAD = 3  # a process waits while it is ahead of the slowest one by more than this many runs
_client: redis.Redis | None = None


def judge() -> redis.Redis:
    global _client  # noqa: PLW0603 - one connection pool for a process
    if _client is None:
        _client = redis.Redis.from_url(os.environ["JUDGE_URL"])
    return _client


def record(work_s: float = 0.0) -> None:
    """Record the run at the server that the test reads, then sleep for `work_s`."""
    occurrence = current_occurrence()
    assert occurrence is not None
    judge().rpush(FIRED, f"{occurrence.id} {os.getpid()} {occurrence.token} {time.time_ns() // 1_000_000}")
    if work_s:
        time.sleep(work_s)  # the work


async def record_later() -> None:
    """Does what `record` does, as a coroutine."""
    record()


def record_and_wait() -> None:
    """Record the run, and work until the server that the test reads has the key `OPEN`."""
    record()
    while not judge().exists(OPEN):
        time.sleep(0.02)  # the server sends no signal


def take_turn(processes: int, jobs: int) -> None:
    """Record the run. Wait while this process is far ahead of the process with the fewest runs.

    The process with the fewest runs never waits, so all jobs end.
    """
    record()
    client = judge()
    mine = int(client.hincrby(TURNS, str(os.getpid()), 1))
    while True:
        turns = [int(value) for value in client.hvals(TURNS)]
        slowest = min(turns) if len(turns) == processes else 0
        if mine <= slowest + AHEAD or sum(turns) >= jobs:
            break
        time.sleep(0.01)  # another process makes it true, without a signal


def fail() -> None:
    """A job that raises."""
    raise RuntimeError("on purpose")
