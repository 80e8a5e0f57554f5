"""`celery wheel` shows errors in the same way as `wheel-sched`."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from wheel_sched_celery.cli import WheelGroup

from wheel_sched.errors import StoreUnavailable


@pytest.mark.parametrize(
    "error", [StoreUnavailable("a\nb \x1b[2J redis://u:pw@h"), click.UsageError("a\nb redis://u:pw@h")]
)
def test_the_commands_of_celery_show_errors_as_ours_do(error: Exception) -> None:
    """`celery wheel` is another click group, and uses the same error lines."""

    @click.command()
    def fail() -> None:
        raise error

    group = WheelGroup(name="wheel", lazy={})
    group.get_command = lambda *_: fail  # type: ignore[method-assign]  # a command that is in no module
    group._lazy["fail"] = None  # type: ignore[assignment]
    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code != 0
    assert "pw" not in result.stderr
    assert "a\\nb" in result.stderr
    assert "\x1b" not in result.stderr
