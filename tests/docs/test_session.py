"""The commands of docs/command-line.md run as a reader would run them: as processes, one after the other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines() -> list[list[str]]:
    return [shlex.split(line) for block in BLOCK.findall(PAGE.read_text("utf-8")) for line in block.splitlines()]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)  # some twenty processes, two seconds each on a busy machine
def test_every_line_of_the_session_works(tmp_path: Path) -> None:
    """Each command of the page, in order, exits with 0. No output has an escaped line break."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEEL_SCHED_")}
    commands = lines()
    assert len(commands) > 15
    for program, *arguments in commands:
        assert program == "wheel-sched"
        done = subprocess.run(
            [sys.executable, "-m", "wheel_sched.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{shlex.join(arguments)}: {done.stdout}{done.stderr}"
        assert "\\n" not in done.stdout + done.stderr, shlex.join(arguments)


@pytest.mark.slow
def test_the_line_for_completion_works() -> None:
    """In a bash that has run the page's line, commands are completed."""
    (line,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    press = "COMP_WORDS=(wheel-sched repl) COMP_CWORD=1; _wheel_sched_completion wheel-sched; echo ${COMPREPLY[@]}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{line}\n{press}"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PATH": path},
    )
    assert (done.stdout, done.stderr) == ("replay\n", "")
