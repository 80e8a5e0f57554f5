"""Fixtures that start processes which own an embedded server, and that wait for what other processes do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wheel_sched.store.embedded.folder import DataFolder

Owner = subprocess.Popen[str]

OPEN = "import os, sys\nfrom wheel_sched.store.embedded import EmbeddedServer\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run_owner(folder: Path) -> Iterator[Callable[[str], Owner]]:
    """Return a function that starts a Python process with `folder` as argv[1]. Each process is killed after the
    test."""
    started: list[Owner] = []

    def run(code: str) -> Owner:
        process = subprocess.Popen(
            [sys.executable, "-c", OPEN + code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
    if folder.exists():
        wait_until(lambda: not occupied(folder))


def occupied(folder: Path) -> bool:
    """Whether a server or its supervisor uses `folder`. The kernel's lock on the pid file shows it."""
    return DataFolder(folder).occupied()


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition that another process brings about."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)  # another process makes it true, without a signal


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[[Callable[[], bool]], None]:
    return wait_until


@pytest.fixture(name="occupied")
def _occupied(folder: Path) -> Callable[[], bool]:
    return lambda: occupied(folder)
