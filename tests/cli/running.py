"""Two ways to run the command line in tests: in this process, and in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest
    from click.testing import Result

_KEPT = frozenset({"WHEEL_SCHED_PURE", "WHEEL_SCHED_SERVER"})  # select the core of the timing wheel and the server
WHEEL_SCHED = str(Path(sys.executable).with_name("wheel-sched"))


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs the command line in this process, with one store."""

    url: str

    def __call__(self, *args: str, code: int | None = 0, stdin: str | bytes | None = None) -> Result:
        from click.testing import CliRunner

        from wheel_sched.cli.program import cli

        result = CliRunner().invoke(cli, ["--store", self.url, *args], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if code is not None:
            assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int | None = 0) -> dict[str, Any]:
        """Run a command that writes one JSON object, and return the object."""
        (value,) = self.objects(*args, code=code)
        return value

    def objects(self, *args: str, code: int | None = 0) -> list[dict[str, Any]]:
        """Run a command that writes one JSON object on each line, and return the objects."""
        return [json.loads(line) for line in self(*args, "--json", code=code).stdout.splitlines()]


@dataclass(frozen=True, slots=True)
class Program:
    """Runs `wheel-sched` in a new process and a given folder, as users do."""

    folder: Path
    program: str = WHEEL_SCHED

    def __call__(
        self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        full = {**os.environ, **(env or {})}
        command = [self.program, *args]
        return subprocess.run(command, cwd=self.folder, input=stdin, capture_output=True, timeout=50, env=full)


def isolate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in `folder` and without settings from the environment, so that it does not see the project's
    settings."""
    monkeypatch.chdir(folder)
    for name in list(os.environ):
        if name.startswith("WHEEL_SCHED_") and name not in _KEPT:
            monkeypatch.delenv(name)
