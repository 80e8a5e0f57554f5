"""A build without a compiler succeeds. Its wheel has the core in Python only."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


def wheel_of(out: Path, **environment: str) -> tuple[frozenset[str], str]:
    """Build a wheel with `environment` added to the environment variables. Return the wheel's files and its name."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)],
        env=os.environ | environment,
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist()), wheel.name


def test_a_compiler_that_fails_costs_the_compiled_core_and_nothing_else(tmp_path: Path) -> None:
    """If the compiler fails, the wheel lacks only the compiled extension module, and can be installed for any
    Python 3."""
    names, name = wheel_of(tmp_path, CC="/bin/false")
    assert not [member for member in names if member.endswith((".so", ".pyd", ".c"))]
    assert "wheel_sched/wheel/pure.py" in names
    assert name.endswith("-py3-none-any.whl")


def test_the_pure_core_can_be_asked_for(tmp_path: Path) -> None:
    """With `WHEEL_SCHED_PURE=1` the build does not call the compiler."""
    names, name = wheel_of(tmp_path, WHEEL_SCHED_PURE="1")
    assert not [member for member in names if member.endswith((".so", ".pyd"))]
    assert name.endswith("-py3-none-any.whl")
