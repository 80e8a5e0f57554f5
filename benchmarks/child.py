"""Runs each measurement in its own process, whose memory and interpreter lock belong to that measurement alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_module(module: str, *arguments: str, pure: bool = False) -> dict[str, Any]:
    """Run `python -m module arguments`, which prints one JSON object. Returns that object.

    Args:
        pure: use the wheel's core in Python. Defaults to False.

    Raises:
        RuntimeError: the process failed; the error has the end of its stderr.
    """
    environment = os.environ | ({"WHEEL_SCHED_PURE": "1"} if pure else {})
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
