"""The package's public names: all there, and imported no sooner than they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import retry_topic


def test_every_public_name_is_found() -> None:
    """Each from the module that the list names; another is an error in Python's usual words."""
    for name in retry_topic.__all__:
        assert getattr(retry_topic, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'retry_topic' has no attribute 'nothing'"):
        _ = retry_topic.nothing  # type: ignore[attr-defined]  # it is not there


def test_a_part_is_imported_when_it_is_asked_for() -> None:
    """Each process that Spark starts imports the package to reach one module of it."""
    program = (
        "import sys, retry_topic; before = 'retry_topic.message' in sys.modules; retry_topic.Message; "
        "print(before, 'retry_topic.message' in sys.modules, 'retry_topic.consumer' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True", "False"]
