"""The programs in `examples/` work as their texts say, when they are run as a reader would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# each example runs in another process, some start more: seconds, or half a minute on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(name: str, *args: str, cwd: Path) -> list[str]:
    """Run an example and return the lines of its output. It must end with 0, and stderr may only report failed
    attempts and dead letters."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *args], cwd=cwd, capture_output=True, text=True, timeout=180
    )
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(FAILED)]
    assert (ended.returncode, lines) == (0, [])
    return ended.stdout.splitlines()


# Python shows warnings where nobody has configured logging; the traceback below a dead letter is indented
FAILED = ("consumer.failed: ", "intake.dead: ", "  ")
SHIPPED = {"shipped: screw", "shipped: nut", "shipped: bolt", "replayed: 1"}
DEAD = {
    "dead: 1 x verdict: no error: we do not sell those",
    "dead: 1 x fatal: builtins.ValueError: cannot read ???",
    "dead: 1 x max-attempts: builtins.LookupError: no bolt in stock",
}


@pytest.mark.parametrize("url", ["memory:", pytest.param("embedded:./data", marks=pytest.mark.real)])
def test_retry_consumer(tmp_path: Path, url: str) -> None:
    """Each verdict has its effect, and the replayed message is handled."""
    lines = run("retry_consumer.py", url, cwd=tmp_path)
    assert set(lines) >= SHIPPED | DEAD
    assert [line for line in lines if "bolt" in line] == [
        "attempt 1: bolt",
        "attempt 2: bolt",
        "attempt 3: bolt",
        "dead: 1 x max-attempts: builtins.LookupError: no bolt in stock",
        "attempt 1: bolt",
        "shipped: bolt",
    ]


def test_asyncio_handler(tmp_path: Path) -> None:
    """All 100 calls are answered, 34 of them at the second attempt."""
    lines = run("asyncio_handler.py", cwd=tmp_path)
    assert lines[0] == "100 calls answered, 34 of them at the second attempt"


@pytest.mark.real
def test_two_processes(tmp_path: Path) -> None:
    """The first consumer is killed, and all 60 messages are handled."""
    killed, handled = run("two_processes.py", str(tmp_path / "data"), cwd=tmp_path)
    assert killed.startswith("killed the first consumer after ")
    assert handled.startswith("60 of 60 messages handled, ")


def test_every_example_has_a_test() -> None:
    """Each of the three retry topic examples exists and has a test in this module."""
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    ours = {"retry_consumer", "asyncio_handler", "two_processes"}
    assert ours <= tested
    assert ours <= {path.stem for path in EXAMPLES.glob("*.py")}
