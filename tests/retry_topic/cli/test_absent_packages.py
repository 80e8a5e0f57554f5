"""Packages that are not installed: commands that do not need them work, and other commands say how to install them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wheel_sched.management.missing import install_line

pytestmark = pytest.mark.slow

WITHOUT_REDIS = "import sys; sys.modules['redis'] = None; "


@pytest.mark.parametrize(
    ("code", "error_text"),
    [
        ("from wheel_sched.cli import main; sys.argv[1:] = ['policy', 'explain', 'default']; main()", "[default]"),
        ("from retry_topic import connect; connect('kafka://x')", "expected the store to be redis://"),
        ("from retry_topic import connect; connect('redis://x')", 'pip install "wheel-sched[redis]"'),
        (
            "import asyncio; from wheel_sched.store import open_async_store as o; asyncio.run(o('kafka://x'))",
            "expected an asyncio store to be redis://",
        ),
    ],
    ids=["policy", "wrong scheme", "right scheme", "asyncio"],
)
def test_what_needs_no_redis_asks_for_none(code: str, error_text: str) -> None:
    """Without the package `redis`, policies can be explained. A wrong address scheme is reported before the missing
    package."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_REDIS + code], capture_output=True, text=True, timeout=50)
    assert error_text in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("pyspark.sql", "spark"),
        ("pyarrow", "spark"),
        ("confluent_kafka", "kafka"),
        ("rich", "demo"),
        ("kombu", "celery"),
    ],
)
def test_an_extension_names_the_extras_of_its_packages(package: str, expected: str) -> None:
    """`install_line` names the extra of the package that an extension needs."""
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    assert install_line(error) == f'pip install "wheel-sched[{expected}]"'
