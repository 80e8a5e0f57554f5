"""Traces one Celery task with an ETA, from before `apply_async(countdown=...)` until it has run in a worker.

This process is the producer. The worker is a second process, with the solo pool. Both begin to record just before
`apply_async`. The result lists the files whose functions either process called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tracing import SETTLE_S, Tracer, main, public, wait_for

WORKER = "worker"


def app_of(broker: str) -> Any:
    from celery import Celery
    from wheel_sched_celery import install

    app = Celery("traced", broker=broker, backend=broker)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
    install(app)
    return app


def way(tracer: Tracer, folder: Path) -> list[str]:
    with public("EmbeddedServer").open(str(folder / "data")) as server:
        broker = f"redis+socket://{server.socket_path}"
        app = app_of(broker)
        task = app.signature("traced.task")
        log = folder / "worker.log"
        with log.open("w") as out:
            command = [sys.executable, __file__, WORKER, broker]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True)
        try:
            ready = read(worker, log)
            assert ready == "ready", ready
            app.send_task("traced.earlier", countdown=3600)  # opens the producer's connections
            time.sleep(SETTLE_S)
            tell(worker, "begin")
            read(worker, log)
            tracer.begin()
            task.apply_async(countdown=3)
            read(worker, log)  # the task has run
            files = tracer.end()
            tell(worker, "end")
            return sorted({*files, *json.loads(read(worker, log))})
        finally:
            worker.kill()
            worker.wait()


def tell(worker: subprocess.Popen[str], word: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{word}\n")
    worker.stdin.flush()


def read(worker: subprocess.Popen[str], log: Path) -> str:
    """The next line that the worker prints.

    Raises:
        RuntimeError: the worker has ended.
    """
    assert worker.stdout is not None
    line = worker.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"the worker has ended; it wrote: {log.read_text()[-2_000:]}")
    return line


def work(broker: str) -> None:
    """Run as the worker process: carry out the commands on stdin, and answer on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Celery prints must not mix with the answers
    tracer = Tracer()
    app = app_of(broker)
    ran = threading.Event()

    @app.task(name="traced.task")
    def task() -> None:
        ran.set()

    def answer(text: str) -> None:
        answers.write(f"{text}\n")
        answers.flush()

    def obey() -> None:
        try:
            answer("ready")
            if sys.stdin.readline() == "begin\n":
                tracer.begin()
                answer("begun")
                wait_for(ran, "the task ran")
                answer("ran")
                sys.stdin.readline()
                answer(json.dumps(tracer.end()))
        finally:
            os._exit(0)  # also when the producer has died: nobody else ends this worker

    from celery.signals import worker_ready

    worker_ready.connect(lambda **_: threading.Thread(target=obey, daemon=True).start(), weak=False)
    app.worker_main(
        ["worker", "-P", "solo", "-l", "INFO", "-n", "traced@house", "--without-mingle", "--without-gossip"]
    )


if __name__ == "__main__":
    if sys.argv[1] == WORKER:
        work(sys.argv[2])
    else:
        main(way)
