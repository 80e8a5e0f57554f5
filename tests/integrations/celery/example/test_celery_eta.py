"""The example project does what it says, as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "celery_eta" / "run.py"


@pytest.mark.real
@pytest.mark.timeout(150)
def test_two_workers_a_producer_and_a_stock_one(tmp_path: Path) -> None:
    """Everything waits in the store, a worker is killed, and every report is sent."""
    ended = subprocess.run(
        [sys.executable, EXAMPLE, str(tmp_path / "data")], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    logs = "\n".join(log.read_text(errors="replace") for log in (tmp_path / "data").glob("*.log"))
    assert ended.returncode == 0, ended.stderr + logs
    assert ended.stdout.splitlines() == [
        "40 tasks wait in the store, none in a worker",
        "killed the first worker",
        "40 reports sent, 0 of them early",
    ]
