"""A build without a compiler succeeds. Its wheel has the core in Python only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


def test_a_compiler_that_fails_costs_the_compiled_core_and_nothing_else(tmp_path: Path) -> None:
    """If the compiler fails, the wheel lacks only the compiled extension module, and can be installed for any
    Python 3. test_distributions.py checks the same for a wheel that is built as a pure one."""
    installer = ["--installer", "uv"] if shutil.which("uv") else []
    command = [sys.executable, "-m", "build", "--wheel", *installer, "--outdir", str(tmp_path), str(ROOT)]
    environment = os.environ | {"CC": "/bin/false"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [member for member in names if member.endswith((".so", ".pyd", ".c"))]
    assert "wheel_sched/wheel/pure.py" in names
    assert wheel.name.endswith("-py3-none-any.whl")
