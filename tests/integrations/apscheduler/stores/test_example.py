"""The program in `examples/` does what it says. The test runs it as a reader does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "shared_jobs.py"


@pytest.mark.real
@pytest.mark.slow
def test_shared_jobs(tmp_path: Path) -> None:
    """One of two processes is killed, and every job has run at the end."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, str(tmp_path / "data")], capture_output=True, text=True, timeout=55
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    killed, ran = ended.stdout.splitlines()
    assert killed.startswith("killed the first process after ")
    assert ran.startswith("60 of 60 jobs ran, ")
