"""The core's tests need no other package of this project (a guest): they pass when no guest can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cli", "dispatcher", "embedded", "observability", "purgatory", "servers", "store", "timers", "wheel")
UNIT = "not real and not slow and not built and not spark and not kafka and not rabbit"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def pytest_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in an environment with the core and no guest, see `core_alone/sitecustomize.py`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    places = [str(Path(__file__).with_name("core_alone")), *filter(None, [env.get("PYTHONPATH")])]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "-m", UNIT]
    # pytest warns that sitecustomize has imported a module before pytest could rewrite its assertions
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=ROOT,
        env={**env, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_no_module_of_the_cores_tests_imports_a_guest() -> None:
    """Pytest can collect the core's tests when no package of this project but `wheel_sched` can be imported."""
    done = pytest_alone("--collect-only", *(f"tests/{folder}" for folder in FOLDERS))
    assert done.returncode == 0, done.stdout[-3_000:]


@pytest.mark.parametrize("folder", ["cli", "observability"])
def test_the_cores_tests_pass(folder: str) -> None:
    """The tests in the folder pass when no package of this project but `wheel_sched` can be imported.

    `.ci/run` runs the tests of the store in the same way, on the oldest supported server.
    """
    done = pytest_alone(f"tests/{folder}")
    assert done.returncode == 0, done.stdout[-3_000:]


def test_the_guests_are_absent() -> None:
    """If the folder `core_alone` is on PYTHONPATH, `retry_topic` cannot be imported."""
    code = "import wheel_sched\ntry: import retry_topic\nexcept ModuleNotFoundError: print('absent')"
    places = str(Path(__file__).with_name("core_alone"))
    env = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=50)
    assert done.stdout == "absent\n", done.stderr
