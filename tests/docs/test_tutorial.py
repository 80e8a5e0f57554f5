"""The programs and commands of docs/tutorial.md run in one folder, in order, and the commands print what it shows.

tests/packaging/test_newcomer.py does the same in an environment that has only the built wheel.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.newcomer.story import Step, difference, steps_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def run_program(step: Step) -> None:
    assert step.program is not None
    path = Path(step.name).resolve()
    path.write_text(step.program, "utf-8")
    module = ModuleType(f"tutorial_{path.stem}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(step.program, path, "exec"), module.__dict__)  # noqa: S102 - a page of ours
    finally:
        del sys.modules[module.__name__]


def run_command(step: Step) -> None:
    from wheel_sched.cli.program import cli

    program, *arguments = shlex.split(step.command)
    assert program == "wheel-sched"
    printed = io.StringIO()  # output and errors in the order in which a terminal shows them
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit) as ended,
    ):
        cli(arguments)
    assert not ended.value.code, f"{step.command}: {printed.getvalue()}"
    assert not (differs := difference(step, printed.getvalue())), differs


@pytest.mark.real
@pytest.mark.usefixtures("ends_soon")
def test_the_story_runs_from_the_first_failure_to_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program succeeds, and each command prints what the page shows: also that the replayed letter is gone."""
    from wheel_sched.store.embedded import EmbeddedServer

    install, *steps = steps_of(PAGE.read_text("utf-8"))
    assert install.command.startswith("pip install ")
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer.open(".wheel-sched"):  # one server for the story; without it each step would start its own
        for step in steps:
            if step.program is not None:
                run_program(step)
            else:
                run_command(step)
