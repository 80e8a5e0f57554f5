"""The example project does what it says. A reader would run it like this."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "celery_eta" / "run.py"


@pytest.mark.real
@pytest.mark.timeout(150)
def test_two_workers_a_producer_and_a_stock_one(tmp_path: Path) -> None:
    """All tasks wait in the store, a worker is killed, and every report is sent."""
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, str(tmp_path / "data")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever it started and did not end
            os.killpg(process.pid, signal.SIGKILL)
    logs = "\n".join(log.read_text(errors="replace") for log in (tmp_path / "data").glob("*.log"))
    assert process.returncode == 0, errors + logs
    assert out.splitlines() == [
        "40 tasks wait in the store, none in a worker",
        "killed the first worker",
        "40 tasks are due in two seconds instead",
        "40 reports sent, 0 of them early",
    ]
