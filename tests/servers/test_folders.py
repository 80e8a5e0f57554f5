"""Whoever makes a temporary folder deletes the folders of killed processes, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.folders import temporary_folder

pytestmark = pytest.mark.real

OWNER = """
import sys
from tests.servers.folders import temporary_folder

with temporary_folder("ours-") as folder:
    (folder / "data").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test makes its temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def owner(stack: ExitStack, place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that owns a folder. Return the process and the folder."""
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", OWNER]
    child = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    )
    stack.callback(child.kill)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_the_next_one_removes_the_folder_of_a_killed_process(stack: ExitStack, place: Path) -> None:
    """Making a folder removes the folder of a killed process. It keeps a folder whose process still runs, whose
    prefix differs, or which has no file `owner`."""
    (killed, abandoned), (living, kept) = owner(stack, place), owner(stack, place)
    others = [place / "ours-alone", place / "theirs-1"]
    for folder in others:
        folder.mkdir()
    (others[1] / "owner").touch()
    killed.kill()
    killed.wait(30)
    assert (abandoned / "data").is_dir()
    with temporary_folder("ours-") as folder:
        assert sorted(place.iterdir()) == sorted([folder, kept, *others])
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    living.communicate("", timeout=30)
    assert not kept.exists()
    assert living.returncode == 0
