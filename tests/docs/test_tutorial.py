"""The programs and commands of docs/tutorial.md run in one folder, in their order, as a reader would run them."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_program(number: int, text: str) -> None:
    module = ModuleType(f"tutorial_{number}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, f"{PAGE}, program {number}", "exec"), module.__dict__)  # noqa: S102 - a page of ours
    finally:
        del sys.modules[module.__name__]


def run_commands(text: str) -> dict[str, str]:
    from click.testing import CliRunner

    from wheel_sched.cli.program import cli

    outputs = {}
    for line in text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "wheel-sched"
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
        outputs[line] = done.output
    return outputs


@pytest.mark.real
@pytest.mark.usefixtures("ends_soon")
def test_the_story_runs_from_the_first_failure_to_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program and each command succeeds, the dead letter is shown, and after the replay it is gone."""
    from wheel_sched.store.embedded import EmbeddedServer

    monkeypatch.chdir(tmp_path)
    outputs: dict[str, str] = {}
    with EmbeddedServer.open(".wheel-sched"):  # one server for the story; without it each step would start its own
        for number, (kind, text) in enumerate(BLOCK.findall(PAGE.read_text("utf-8"))):
            if kind == "python":
                run_program(number, text)
            else:
                outputs |= {f"{number} {line}": output for line, output in run_commands(text).items()}
    dead = [output for line, output in outputs.items() if line.endswith("wheel-sched list --dead")]
    assert ["order-2" in output for output in dead] == [True, False]
    assert "order-2" in outputs["3 wheel-sched replay --topic orders --dry-run"]
