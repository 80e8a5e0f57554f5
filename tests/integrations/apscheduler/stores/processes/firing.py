"""Jobs that tell a server that they ran: which occurrence, in which process, when. The judge reads that, no log."""

from __future__ import annotations

import os
import time

import redis
from wheel_sched_apscheduler import current_fire

FIRED = "fired"
_client: redis.Redis | None = None


def record(work_s: float = 0.0) -> None:
    """Tell it, then work."""
    global _client  # noqa: PLW0603 - one connection pool for a process
    if _client is None:
        _client = redis.Redis.from_url(os.environ["JUDGE_URL"])
    fire = current_fire()
    assert fire is not None
    _client.rpush(FIRED, f"{fire.id} {os.getpid()} {fire.token} {time.time_ns() // 1_000_000}")
    if work_s:
        time.sleep(work_s)  # the work


def fail() -> None:
    """Raise."""
    raise RuntimeError("on purpose")
