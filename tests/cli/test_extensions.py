"""Extensions add commands to the command line by entry point. A missing or broken extension affects only
its commands."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from wheel_sched.cli.program import COMMANDS, RootGroup
from wheel_sched.extensions import Extension, Lazy, load
from wheel_sched.extensions.entry_point_files import EntryPoint, entry_points

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GUEST = """
from dataclasses import dataclass
import click
from wheel_sched.extensions import Extension, Lazy, StatsPart
from wheel_sched.config import Settings, SettingSpec, setting

@dataclass(frozen=True, slots=True)
class GuestSettings(Settings):
    colour: str = setting("red", SettingSpec(choices=("red", "blue"), flag_help="Of the guest.", metavar="COLOUR"))

@click.command()
@click.pass_obj
def paint(session):
    click.echo(session.loaded.read(GuestSettings).colour)

EXTENSION = Extension(
    title="Guests",
    commands={"paint": Lazy("guest:paint", "Paint."), "stats": Lazy("guest:paint", "Not the core's.")},
    settings=GuestSettings,
    variables=("GUEST_SECRET",),
)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the command line with the extensions in `tmp_path` and no others."""

    def start(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys\n"
            "sys.path[:] = [sys.argv.pop(1), *(p for p in sys.path if p)]\n"
            "import wheel_sched.extensions.entry_point_files as e\n"
            "real = e._packages\n"
            "e._packages = lambda place: real(place) if place == sys.path[0] else ()\n"
            "from wheel_sched.cli import main\n"
            "main()\n"
        )
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), *args],
            capture_output=True,
            text=True,
            timeout=50,
            cwd=tmp_path,
            env={**os.environ, **env},
        )

    return start


def install(folder: Path, value: str, module: str = "", name: str = "guest") -> None:
    """Make a package with one entry point in `folder`, as an installer does."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[other]\nx = y:z\n\n[wheel_sched.extensions]\n{name} = {value}\n")
    if module:
        (folder / f"{name}.py").write_text(module)


def test_an_extension_brings_commands_settings_and_flags(run: Run, tmp_path: Path) -> None:
    """An extension needs only an entry point. Its settings come from the same sources, in the same order, as the
    core's."""
    install(tmp_path, "guest:EXTENSION", GUEST)
    assert "Guests:\n  paint  Paint." in run("--help").stdout.replace("paint    ", "paint  ")
    assert run("paint").stdout == "red\n"
    assert run("paint", WHEEL_SCHED_COLOUR="blue", WHEEL_SCHED_GUEST_SECRET="x").stdout == "blue\n"
    assert run("--colour", "red", "paint", WHEEL_SCHED_COLOUR="blue").stdout == "red\n"
    (tmp_path / "wheel-sched.toml").write_text('colour = "blue"\n')
    assert run("paint").stdout == "blue\n"
    shown = run("config", "show", "--origin").stdout
    assert "colour" in shown
    assert "file wheel-sched.toml" in shown
    (tmp_path / "wheel-sched.toml").write_text('color = "blue"\n')
    refused = run("config", "show")
    assert (refused.returncode, "did you mean 'colour'?" in refused.stderr) == (2, True)


def test_no_extension_replaces_a_command_of_the_core(run: Run, tmp_path: Path) -> None:
    """If an extension has a command with the name of a core command, the core's command runs. One line on stderr
    says that the extension's command is ignored."""
    install(tmp_path, "guest:EXTENSION", GUEST)
    done = run("stats", "--help")
    assert "the command 'stats' of an extension is ignored" in done.stderr
    assert "Count the items" in done.stdout


@pytest.mark.parametrize(
    ("value", "module", "why"),
    [
        ("guest:EXTENSION", "raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("guest:EXTENSION", "import no_such_package", "No module named 'no_such_package'"),
        ("guest:MISSING", "", "No module named 'guest'"),
        ("guest:MISSING", "x = 1", "has no attribute 'MISSING'"),
        ("guest:x", "x = 1", "expected guest:x to be an Extension, got: int"),
    ],
    ids=["raises", "needs a package", "no module", "no attribute", "no extension"],
)
def test_a_broken_extension_costs_one_line_and_its_own_commands(
    run: Run, tmp_path: Path, value: str, module: str, why: str
) -> None:
    """If an extension cannot be loaded, stderr says so in one line and the core's commands run. Settings of the
    broken extension in the settings file are no error."""
    install(tmp_path, value, module)
    (tmp_path / "wheel-sched.toml").write_text('colour = "blue"\nnamespace = "orders"\n')
    done = run("config", "show", "--json")
    assert done.returncode == 0, done.stderr
    assert '"namespace": "orders"' in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("wheel-sched: the extension 'guest' cannot be loaded, its commands are missing: ")
    assert why in line
    assert run("paint").returncode == 2


def test_without_extensions_the_core_stands_alone(run: Run) -> None:
    """`--help` lists only the core's commands and prints nothing on stderr. `config show` has only the core's
    settings."""
    done = run("--help")
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.partition("Store:\n")[2].splitlines()] == list(COMMANDS)
    assert "--kafka" not in done.stdout
    assert len(run("config", "show").stdout.splitlines()) == 7


def test_two_extensions_are_listed_each_under_its_title() -> None:
    """`--help` lists each extension's commands under its title, before the core's."""
    entries = [EntryPoint("a", "test:ONE"), EntryPoint("b", "test:TWO")]
    found = load([])
    assert (found.extensions, found.problems) == ((), ())
    one = Extension("One", {"x": Lazy("m:x", "X.")})
    two = Extension("Two", {"y": Lazy("m:y", "Y.")}, dispatchers=("a worker",))
    group = RootGroup("wheel-sched", found=type(found)((one, two)))
    text = group.get_help(click.Context(group))
    assert text.index("One:") < text.index("Two:") < text.index("Store:")
    assert len(load(entries).problems) == 2


@pytest.mark.parametrize("group", ["pytest11", "console_scripts", "nobody's"])
def test_the_quick_look_finds_what_importlib_finds(group: str) -> None:
    """`entry_points` finds all entry points that importlib finds. Only this project's own may be missing, because the
    module in `core_alone` hides them."""
    expected = {(entry.name, entry.value) for entry in importlib.metadata.entry_points(group=group)}
    found = {(entry.name, entry.value) for entry in entry_points(group)}
    assert found <= expected
    assert {name for name, value in expected - found if not value.startswith("wheel_sched")} == set()


def test_a_place_that_is_a_file_is_left_to_importlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an entry of sys.path is a zip file, `entry_points` finds the entry points of the packages in it."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("guest-1.0.dist-info/METADATA", "Name: guest\nVersion: 1.0\n")
        archive.writestr("guest-1.0.dist-info/entry_points.txt", "[wheel_sched.extensions]\nzipped = guest:E\n")
    monkeypatch.syspath_prepend(str(tmp_path / "app.zip"))
    assert EntryPoint("zipped", "guest:E") in entry_points("wheel_sched.extensions")


def test_a_version_that_is_hidden_by_another_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a package is installed twice, only the first one on sys.path counts, as for imports."""
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        install(tmp_path / place, f"guest:{place.upper()}")
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / place)])
    assert EntryPoint("guest", "guest:FIRST") in entry_points("wheel_sched.extensions")
    assert EntryPoint("guest", "guest:SECOND") not in entry_points("wheel_sched.extensions")
