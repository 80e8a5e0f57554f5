"""A process that adds jobs one by one when the test gives the signal. It reports how many ids it was the first to add.

argv: the store's URL, the number of jobs. All processes of a race add the same ids.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

import redis
from apscheduler.jobstores.base import ConflictingIdError
from wheel_sched_apscheduler import Producer, RedisWheelJobStore

url, count = sys.argv[1], int(sys.argv[2])
added = 0
with (
    redis.Redis.from_url(os.environ["JUDGE_URL"]) as judge,
    Producer(RedisWheelJobStore(url, allow=["firing"]), timezone="UTC") as producer,
):
    far = datetime(2040, 1, 1, tzinfo=UTC)
    producer.jobstore.count()  # it is open before the race begins
    judge.rpush("here", os.getpid())
    judge.blpop(["go"], timeout=60)
    for number in range(count):
        try:
            producer.add_job("firing:record", "date", run_date=far, id=f"j{number}", name=str(os.getpid()))
            added += 1
        except ConflictingIdError:
            continue
sys.stdout.write(f"{added}\n")
