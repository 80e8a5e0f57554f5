"""`wheel-sched init` writes projects whose own tests pass, and replaces no file."""

from __future__ import annotations

import importlib
import inspect
import io
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.cli.running import Cli
from wheel_sched.extensions import Stack, installed
from wheel_sched.management.new_project import write_project

STACKS = ("redis", "kafka", "celery", "apscheduler")
CLI = Cli("memory:")


def run_tests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the project's tests in this process, with the fixtures that they ask for. Returns their names."""
    from retry_topic.testing import run

    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    output = io.StringIO()
    capsys = SimpleNamespace(readouterr=lambda: SimpleNamespace(out=output.getvalue()))
    ran = []
    try:
        (name,) = (path.stem for path in folder.glob("test_*.py"))
        for test, function in vars(importlib.import_module(name)).items():
            if test.startswith("test_"):
                with pytest.MonkeyPatch.context() as own, redirect_stdout(output):
                    fixtures: dict[str, Any] = {"run_handler": run, "monkeypatch": own, "capsys": capsys}
                    function(**{wanted: fixtures[wanted] for wanted in inspect.signature(function).parameters})
                ran.append(test)
    finally:
        for module in set(sys.modules) - before:
            if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[module]
    return ran


@pytest.mark.parametrize("stack", STACKS)
def test_the_project_of_each_stack_is_whole_and_passes_its_test(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are listed with the next command, every file is sound, and the project's test passes."""
    folder = tmp_path / "my shop"
    said = CLI.json("init", str(folder), "--stack", stack)
    assert said["next"] == f"cd '{folder}' && pip install -e '.[test]' && pytest"
    assert sorted(path.name for path in folder.iterdir()) == said["files"]
    assert {"README.md", "compose.yaml", "pyproject.toml"} < set(said["files"])
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert set(services) == ({"valkey", "kafka"} if stack == "kafka" else {"valkey"})
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    modules = {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    assert modules == {path.name for path in folder.glob("*.py") if not path.name.startswith("test_")}
    (commands,) = (folder / "README.md").read_text().split("```sh\n")[1:]
    assert len(commands.split("```")[0].splitlines()) == 3
    assert run_tests(folder, monkeypatch)


def test_no_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file exists, the error names it and nothing is written. The folder is the present one by default."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text("mine")
    Path("README.md").symlink_to("nowhere")
    result = CLI("init", "--stack", "redis", code=1)
    assert "README.md, compose.yaml in . exist: nothing was written" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "compose.yaml"]
    Path("compose.yaml").unlink()
    Path("README.md").unlink()
    result = CLI("init", "--stack", "redis")
    assert result.stdout.splitlines()[0] == "README.md"
    assert result.stderr == "wrote 6 files; next: pip install -e '.[test]' && pytest\n"


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """An unknown stack, a file in place of the folder and a file that the system refuses leave nothing behind."""
    result = CLI("init", str(tmp_path / "a"), "--stack", "rabbit", code=2)
    assert "expected --stack to be one of: " in result.stderr
    assert all(f"{name} (" in result.stderr for name in STACKS)
    CLI("init", str(tmp_path / "a"), code=2)
    (tmp_path / "file").touch()
    result = CLI("init", str(tmp_path / "file"), "--stack", "redis", code=1)
    assert "is no folder: nothing was written" in result.output
    with pytest.raises(OSError, match="absent"):
        write_project(tmp_path / "b", {"one": "1", "absent/two": "2"})
    assert list((tmp_path / "b").iterdir()) == []
    assert set(STACKS) == set(installed().stacks)
    assert all(isinstance(one, Stack) for one in installed().stacks.values())
