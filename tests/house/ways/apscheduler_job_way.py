"""Traces one job of a stock BackgroundScheduler, from before `add_job` until the store knows that it has run."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tracing import Tracer, main, public, wait_for

ran = threading.Event()


def job() -> None:
    ran.set()


def way(tracer: Tracer, folder: Path) -> list[str]:
    from apscheduler.schedulers.background import BackgroundScheduler
    from wheel_sched_apscheduler import RedisWheelJobStore

    with public("EmbeddedServer").open(str(folder / "data")) as server:
        scheduler = BackgroundScheduler(timezone="UTC")
        scheduler.add_jobstore(RedisWheelJobStore(server.url))
        scheduler.start()
        tracer.begin()
        scheduler.add_job(job, "date", run_date=datetime.now(UTC) + timedelta(seconds=0.5))
        wait_for(ran, "the job ran")
        files = tracer.end()
        scheduler.shutdown()
        return files


if __name__ == "__main__":
    main(way)
