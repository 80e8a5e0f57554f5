"""Input that is nested more deeply than Python's stack allows: it causes a clear error, and nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from retry_topic.history.attempt import read_attempt
from retry_topic.message.encoding import decode_body
from retry_topic.policy import load_policies
from wheel_sched.config import load_settings
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import open_store

DEEP = 3_000
ARRAYS = "a = " + "[" * DEEP
TABLES = ".".join(["a"] * 1_500) + " = 1"


@pytest.mark.parametrize("text", [ARRAYS, TABLES, f"default.{TABLES}", f"[topic.x]\ndelay.{TABLES}"])
def test_a_policy_file_is_refused_in_words(text: str) -> None:
    """For a policy file that is nested too deep, `load_policies` raises a readable `ConfigError`, not
    `RecursionError`."""
    with pytest.raises(ConfigError, match=r"nested too deeply|expected"):
        load_policies(text + "\n")


@pytest.mark.parametrize("text", [ARRAYS, TABLES, f"store.{TABLES}"])
def test_a_settings_file_is_refused_in_words(text: str, tmp_path: Path) -> None:
    """For a settings file that is nested too deep, `load_settings` raises a readable `ConfigError`, not
    `RecursionError`."""
    path = tmp_path / "wheel-sched.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"nested too deeply|expected|unknown setting"):
        load_settings(env={}, file=path)


def test_a_wrong_setting_is_quoted_without_a_password(tmp_path: Path) -> None:
    """If a settings file has a list in place of an address, the error does not show the password in the list."""
    path = tmp_path / "wheel-sched.toml"
    path.write_text('store = ["redis://u:pw@h"]')
    with pytest.raises(ConfigError) as refused:
        load_settings(env={}, file=path)
    assert "pw" not in str(refused.value)


def test_what_lies_in_the_store_is_refused_in_words() -> None:
    """A history row, reference body or list cursor that is nested too deep raises `Rejected`, not `RecursionError`."""
    deep = b"[" * DEEP
    with pytest.raises(Rejected, match="no row of a history"):
        read_attempt(deep)
    for head in (deep, b"5", b"[1]"):
        with pytest.raises(Rejected):
            decode_body(b"R1" + head + b"\nS1[1,1,1]tab")
    with open_store("memory:") as store, pytest.raises(Rejected, match="expected a cursor"):
        store.list_items("due", cursor=deep.decode())
