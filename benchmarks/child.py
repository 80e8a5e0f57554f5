"""Runs a measurement in its own process, so that no other code shares its memory and its interpreter lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_module(module: str, *arguments: str, pure: bool = False) -> dict[str, Any]:
    """Run `python -m module arguments`, which prints one JSON object. Returns that object.

    Args:
        pure: whether the process uses the wheel's core in Python. Defaults to False.

    Raises:
        RuntimeError: the process failed; the error quotes the end of its stderr.
    """
    environment = os.environ | ({"WHEEL_SCHED_PURE": "1"} if pure else {})
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
