"""The whole example: a server, two workers, a producer with wheel-sched and a stock producer.

    python examples/celery_eta/run.py ./data

All tasks are due in an hour. The example kills one of the two workers. Then it makes the tasks due in two seconds.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from celery import Celery
from celery.result import AsyncResult
from wheel_sched_celery import HeldTasks, install

from wheel_sched.store.embedded import EmbeddedServer

HERE = Path(__file__).parent
EACH = 20


def main(folder: str) -> None:
    with EmbeddedServer.open(folder) as server:
        broker = f"redis+socket://{server.socket_path}"
        env = {**os.environ, "BROKER": broker, "PYTHONPATH": str(HERE)}
        app = Celery("run", broker=broker, backend=broker)
        wheel = install(app)
        workers = [start_worker(name, folder, env) for name in ("first", "second")]
        try:
            while len(app.control.ping(timeout=1.0)) < len(workers):
                pass  # both have to be up
            ids = [task_id for program in ("producer.py", "stock_producer.py") for task_id in produce(program, env)]
            while workers_hold(app) < len(ids):
                pass  # the workers are taking over what the stock producer sent
            print(f"{len(ids)} tasks wait in the store, none in a worker")  # noqa: T201
            workers[0].kill()
            print("killed the first worker")  # noqa: T201
            held = HeldTasks(app)
            moved = held.reschedule(list(held.select()), held.now_ms() + 2_000)
            print(f"{len(moved.done)} tasks are due in two seconds instead")  # noqa: T201
            reports = [AsyncResult(task_id, app=app).get(timeout=60) for task_id in ids]
            gc.collect()  # before the server ends: in Celery 5.6 each result asks the server again when it is freed
            early = sum(report["late_ms"] < 0 for report in reports)
            print(f"{len({report['who'] for report in reports})} reports sent, {early} of them early")  # noqa: T201
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
            wheel.close()
            app.close()


def start_worker(name: str, folder: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tasks",
        "worker",
        "-P",
        "threads",
        "-c",
        "2",
        "-n",
        f"{name}@host",
    ]
    with Path(folder, f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def produce(program: str, env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, HERE / program, str(EACH)], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def workers_hold(app: Celery) -> int:
    """How many tasks the store holds, as a worker reports."""
    for reply in app.control.broadcast("wheel_stats", reply=True, timeout=1.0, limit=1) or []:
        for stats in reply.values():
            return sum(stats.get("held", {}).values())
    return 0


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./data")
