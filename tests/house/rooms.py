"""Traces real runs, and counts the modules of the product whose functions one message, job, task or timer needs.

A way is a small program in `ways/`. It runs in a process of its own, with the measured tree first on the path.
The way first starts servers, connections and services. Counting begins just before the message, job, task or timer is
given to the product. It ends `tracing.SETTLE_S` after the user's code has run for the last time, so that acknowledging
and settling count.

A module counts when a function of its file is called in this time, on any thread, also in the worker process of a way
that has one. These do not count:

- a module that is only imported, and calls made while a module is being imported
- a class without methods of its own, because generated code makes its instances
- a loop that began before the counting, such as that of a heartbeat thread; the functions that it calls later do count
- Lua scripts

The timing wheel runs in Python and not compiled, because a compiled module cannot be traced. So a checkout need not be
built.

    timer            `schedule` of a SystemTimer -> the callback has run
    retry            `publish` to Redis Streams -> handler fails -> intake -> dispatcher releases -> handler succeeds
    retry_kafka      the same over a real Kafka broker, in transactions
    apscheduler_job  `add_job` on a stock BackgroundScheduler over a RedisWheelJobStore -> the job has run
    celery_task      `apply_async(countdown=...)` -> held -> dispatched by a worker -> the task has run
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.house.structure import CORE
from tests.house.tree import Tree

WAYS = ("retry", "retry_kafka", "apscheduler_job", "celery_task", "timer")
PROGRAMS = Path(__file__).parent / "ways"
TIMEOUT_S = 240.0


def rooms(tree: Tree, ways: Iterable[str], *, with_modules: bool = False) -> dict[str, dict[str, Any] | None]:
    """Count the modules that each traced program (way) runs: in total, in `wheel_sched`, and in other packages.

    Args:
        tree: the checkout whose code runs.
        ways: names from `WAYS`.
        with_modules: also list the modules.

    Returns:
        the counts by way, as "total", "core" (in `wheel_sched`) and "own" (in other packages); None for a way that
            could not run. The reason is on stderr.
    """
    found: dict[str, dict[str, Any] | None] = {}
    for way in ways:
        _progress(f"tracing {way}")
        modules = entered(tree, way)
        found[way] = None
        if modules is not None:
            core = sum(name.partition(".")[0] == CORE for name in modules)
            counts: dict[str, Any] = {"total": len(modules), "core": core, "own": len(modules) - core}
            found[way] = counts | ({"modules": modules} if with_modules else {})
    _progress("")
    return found


def entered(tree: Tree, way: str) -> list[str] | None:
    """The modules whose functions one run of a traced program (way) calls, sorted; None if it could not run."""
    with tempfile.TemporaryDirectory(prefix="wheel-sched-house-") as folder:
        path = [folder_of.parent for folder_of in tree.folders.values()]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, path))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore",
            "WHEEL_SCHED_PURE": "1",
            "HOUSE_TREE": str(tree.root),
        }
        result = Path(folder, "entered.json")
        command = [sys.executable, str(PROGRAMS / f"{way}_way.py"), folder, str(result)]
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            _report(way, f"it was not over after {TIMEOUT_S:g} s\n{_text(error.stderr)}")
            return None
        if done.returncode or not result.exists():
            _report(way, done.stderr[-2_000:])
            return None
        files = [Path(name) for name in json.loads(result.read_text("utf-8"))]
    return sorted({tree.module_name(path) for path in files if path in tree.files})


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace")[-2_000:] if isinstance(output, bytes) else (output or "")[-2_000:]


def _report(way: str, reason: str) -> None:
    sys.stderr.write(f"{way}: not measured: {reason.strip()}\n")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
