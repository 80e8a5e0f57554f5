"""A reader that closes the pipe early (`| head -1`) does not make a command fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def read_one_line(url: str, folder: Path, *args: str, stdin: bytes = b"") -> tuple[bytes, int, bytes]:
    """Run a command, read one line of its output and close the pipe. Return the line, the exit code and stderr."""
    command = [sys.executable, "-m", "wheel_sched.cli", "--store", url, *args]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(stdin)
    process.stdin.close()
    line = process.stdout.readline()
    process.stdout.close()
    words = process.stderr.read()
    process.stderr.close()
    return line, process.wait(50), words


def test_publishing_goes_on_without_a_reader(cli: Any, connection: Any, redis_url: str, tmp_path: Path) -> None:
    """`publish` publishes all lines and prints the total on stderr, although nobody reads the ids."""
    connection.broker.create_topic("orders")
    count = 4_000  # ids of 21 bytes: more than a pipe holds
    lines = b"".join(b"%d\n" % number for number in range(count))
    _, code, words = read_one_line(redis_url, tmp_path, "publish", "orders", "--lines", "-", stdin=lines)
    assert (code, words) == (0, b"4,000 messages published\n")
    assert connection.broker.topics()["orders"] == count


@pytest.mark.parametrize("args", [("--help",), ("list", "--help"), ("policy", "explain")], ids=" ".join)
def test_a_reader_that_is_gone_before_the_first_line_is_no_failure(tmp_path: Path, args: tuple[str, ...]) -> None:
    """With `| true`, the exit code is 0 and stderr is empty."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "wheel_sched.cli", *args]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, timeout=50)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
