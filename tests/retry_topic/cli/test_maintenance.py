"""The commands backup, restore and reshard, on a namespace that retry topics use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wheel_sched.store.maintenance.reshard import reshard
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect

HOUR = 3_600_000


class Interrupted(Exception):
    """Raised by a test to interrupt a reshard."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def backend(redis_url: str) -> Iterator[RedisBackend]:
    """The Redis backend of the command line's namespace."""
    found = RedisBackend(client_for(redis_url), Dialect("wheel"), owns_client=True)
    yield found
    found.close()


def test_no_command_writes_over_a_file_unasked(cli: Any, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that writes a file refuses to overwrite one without --force. It also refuses `-` as a file name."""
    monkeypatch.setattr("retry_topic.spark.cli.find_spec", lambda _: True)  # refused before Spark is needed
    Path("a.jsonl").write_text("kept")
    for command in (
        ("backup", "a.jsonl"),
        ("history", "export", "a.jsonl"),
        ("spark", "backtest", "no.jsonl", "--out", "a.jsonl"),
        ("spark", "slo", "no.jsonl", "--target", "1s", "--html", "a.jsonl"),
    ):
        assert "a.jsonl exists: nothing was written" in cli(*command, code=1).stderr
        assert Path("a.jsonl").read_text() == "kept"
        dashed = ["-" if word == "a.jsonl" else word for word in command]
        assert "expected the name of a file, got: -; nothing was written" in cli(*dashed, code=1).stderr
    assert not Path("-").exists()
    cli("history", "export", "a.jsonl", "--force")
    assert Path("a.jsonl").read_text() == ""
    assert Path("a.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_commands_carry_a_namespace_over(cli: Any, connection: Any, wait_for: Any, bury: Any) -> None:
    """After `backup` and `restore` into another namespace, both namespaces list the same messages. A second restore
    without --resume is refused."""
    wait_for("w", now_ms() + HOUR)
    bury("d")
    assert cli.json("backup", "b.jsonl")["items"] == 2
    restored = cli.json("--namespace", "other", "restore", "b.jsonl")
    assert (restored["put"], restored["shards"]) == (2, 1)
    assert cli.objects("list") == cli.objects("--namespace", "other", "list")
    assert cli.objects("list", "--dead") == cli.objects("--namespace", "other", "list", "--dead")
    assert "not empty" in cli("--namespace", "other", "restore", "b.jsonl", code=1).stderr
    assert "2 were there" in cli("--namespace", "other", "restore", "b.jsonl", "--resume").stdout
    assert cli.json("--namespace", "wide", "--shards", "3", "restore", "b.jsonl")["shards"] == 3


def test_the_command_asks_moves_and_tells(cli: Any, connection: Any, wait_for: Any) -> None:
    """`reshard` without a terminal needs --yes. --resume without an interrupted reshard fails with a readable error."""
    wait_for("w", now_ms() + HOUR)
    assert "add --yes" in cli("reshard", "3", code=2).stderr
    cli("reshard", code=2)
    assert "3 shards" in cli("reshard", "3", "--yes").stdout
    assert cli.json("stats")["shards"] == 3
    assert [row["id"] for row in cli.objects("list")] == ["w"]
    assert "has 3 shards already" in cli("reshard", "3").stdout
    assert "nothing to resume" in cli("reshard", "--resume", "--yes", code=1).stderr


def test_a_frozen_namespace_shows_every_command_the_way_out(cli: Any, connection: Any, backend: RedisBackend) -> None:
    """While a reshard is interrupted, reading works. A command that changes something fails and names `reshard
    --resume`."""
    connection.broker.create_topic("orders")

    def stop(step: str, moved: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        reshard(backend, 2, progress=stop)
    assert "resharding 1 to 2" in cli("stats").stdout
    assert "reshard --resume" in cli("publish", "orders", "x", "--delay", "1h", code=1).stderr
    cli("reshard", "--resume", "--yes")
    cli("publish", "orders", "x", "--delay", "1h")
