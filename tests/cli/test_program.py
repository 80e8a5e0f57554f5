"""The root of the command line: its list of commands, lazy imports, help and errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest

from wheel_sched.cli.failing import code_of
from wheel_sched.cli.program import COMMANDS
from wheel_sched.cli.program import cli as root
from wheel_sched.errors import (
    BrokerUnavailable,
    ConfigError,
    EmbeddedServerError,
    Rejected,
    StoreError,
    StoreUnavailable,
)
from wheel_sched.extensions import installed


@pytest.mark.parametrize("name", COMMANDS | installed().commands)
def test_every_command_of_the_table_is_there_and_shows_examples_first(name: str, cli_at: Any) -> None:
    """Each command in the list exists, and its help shows examples before options."""
    command = root.get_command(click.Context(root), name)
    assert command is not None
    if not isinstance(command, click.Group):
        text = cli_at("memory:")(name, "--help").stdout
        assert text.index("Examples:") < text.index("Options:")
        assert f"wheel-sched {name}" in text.replace("wheel-sched --store redis://prod:6379 ", "wheel-sched ")


def test_help_imports_no_client_and_no_command() -> None:
    """`--help` imports click and the small modules of extensions, but no client and no command."""
    code = (
        "import sys\n"
        "from wheel_sched.cli.program import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('redis', 'rich', 'asyncio', 'tomllib', 'importlib.metadata', 'apscheduler', 'celery')\n"
        "guests = ('retry_topic', 'wheel_sched_apscheduler', 'wheel_sched_celery')\n"
        "ours = ('', '.extension', '.cli', '.cli.extension', '.management', '.management.settings')\n"
        "bad = [m for m in heavy if m in sys.modules]\n"
        "allowed = {f'{guest}{module}' for guest in guests for module in ours}\n"
        "bad += [m for m in sys.modules if m.split('.')[0] in guests and m not in allowed]\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_showing_the_settings_imports_no_client() -> None:
    """`config show` does not import the Redis client."""
    code = (
        "import sys\n"
        "from wheel_sched.cli.program import cli\n"
        "try: cli(['config', 'show'])\n"
        "except SystemExit: pass\n"
        "sys.exit('redis' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_without_click_it_says_what_to_install() -> None:
    """If click is missing, the program prints which extra to install, without a traceback."""
    code = "import sys; sys.modules['click'] = None\nfrom wheel_sched.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "wheel-sched[cli,embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_itself_runs_as_the_program() -> None:
    """`python -m wheel_sched` runs the program."""
    done = subprocess.run([sys.executable, "-m", "wheel_sched", "--version"], capture_output=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"wheel-sched ")


def test_a_mistyped_command_is_answered_with_the_near_one(cli_at: Any) -> None:
    """For `restor`, the error proposes `restore`. The exit code is 2 (wrong usage)."""
    assert "Did you mean 'restore'?" in cli_at("memory:")("restor", code=2).stderr


def test_a_memory_store_is_refused_with_the_reason(cli_at: Any) -> None:
    """A memory store would end with the command, so commands refuse it."""
    assert "would end with this command" in cli_at("memory:")("stats", code=2).stderr


@pytest.mark.parametrize("args", [("stats",), ("backup", "f"), ("reshard", "2", "--yes")])
def test_a_mistyped_folder_or_namespace_is_an_error_and_creates_nothing(
    args: tuple[str, ...], cli_at: Any, tmp_path: Any
) -> None:
    """If the data folder does not exist, a command that stores no new messages fails and does not create the folder."""
    done = cli_at("embedded:nowhere")(*args, code=1)
    assert "there is no data folder nowhere: nothing was changed" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("x"), 69),
        (BrokerUnavailable("x"), 69),
        (EmbeddedServerError("x"), 69),
        (ConfigError("x"), 2),
        (Rejected("x"), 2),
        (click.UsageError("x"), 2),
        (StoreError("x"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (OSError("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    """`code_of` gives the exit code for each kind of error."""
    assert code_of(error) == code


def test_a_namespace_that_does_not_exist_is_an_error_and_stays_absent(cli: Any) -> None:
    """A command on an unknown namespace fails and does not create it."""
    for _ in range(2):
        done = cli("--namespace", "nosuch", "stats", code=1)
        assert "there is no namespace 'nosuch'" in done.stderr
        assert done.stdout == ""


def test_a_wrong_shard_count_is_refused(cli: Any, opened: Any) -> None:
    """If --shards differs from the namespace's number of shards, the command fails and says the number."""
    assert "1 shards, not 7" in cli("--shards", "7", "stats", code=1).stderr


def test_a_server_that_is_away_is_69(cli_at: Any) -> None:
    """If the server does not answer, the exit code is 69, which tells scripts that they may try again later."""
    error_text = cli_at("redis://127.0.0.1:1/0")("stats", code=69).stderr
    assert "no connection to the server" in error_text
    assert "executed" not in error_text  # nothing was sent, and listing changes nothing


def test_a_store_that_is_no_url_is_wrong_usage(cli_at: Any) -> None:
    """An unknown kind of address is wrong usage. The error lists the known kinds."""
    assert "redis://" in cli_at("postgres://x")("stats", code=2).stderr
