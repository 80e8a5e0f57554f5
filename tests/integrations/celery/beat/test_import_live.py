"""The import from redbeat on a live server that has the keys of redbeat and the store of the app.

The keys are those that celery-redbeat 2.4.2 wrote itself, in `recorded/redbeat.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pytest
import redis
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.importing.redbeat import read_redbeat
from wheel_sched_celery.cli import wheel

from tests.servers.valkey import temporary_server

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded" / "redbeat.json").read_text("utf-8"))


@pytest.fixture
def url() -> Iterator[str]:
    """A live server with the keys of redbeat, each of the type that redbeat gives it."""
    with temporary_server() as server:
        client = redis.Redis.from_url(server.url)
        for key, value in RECORDED.items():
            if isinstance(value, list):
                client.sadd(key, *value)
            elif key.endswith(":schedule"):
                client.zadd(key, value)
            else:
                client.hset(key, mapping=value)
        client.close()
        yield server.url


@pytest.mark.real
def test_redbeat_on_a_live_server_is_imported_whole(url: str) -> None:
    """A dry run names every entry and writes nothing. Then the import adds all entries, and a second import changes
    nothing.
    """
    app = Celery("moved", broker="memory://", set_as_current=False)
    opened = install(app, url, namespace="moved")
    client: Any = redis.Redis.from_url(url)

    def run(*options: str) -> list[dict[str, Any]]:
        arguments = ["beat", "import", "redbeat", url, "--json", *options]
        result = click.testing.CliRunner().invoke(wheel, arguments, obj=SimpleNamespace(app=app))
        assert result.exit_code == 1, result.output  # because of the rrule
        return [json.loads(line) for line in result.stdout.splitlines()]

    try:
        theirs = {key: client.dump(key) for key in client.keys("redbeat:*")}
        names = {key.removeprefix("redbeat:") for key in RECORDED["redbeat::schedule"]}
        planned = {row["name"]: row["action"] for row in run()}
        assert planned.keys() == names
        entries = BeatEntries(app)
        assert entries.all() == []
        added = {name for name, action in planned.items() if action == "add"}
        (answer,) = run("--apply", "--yes")
        assert answer["done"] == {"add": len(added)}
        assert {row["name"] for row in answer["left"]} == names - added
        here = {stored.name: stored.entry for stored in entries.all() if stored.entry is not None}
        assert here.keys() == added
        there = {entry.name: entry for entry in read_redbeat(url)}
        for name, entry in here.items():
            old = there[name]
            assert (entry.task, entry.args, dict(entry.kwargs)) == (old.task, tuple(old.args), dict(old.kwargs))
            assert (entry.paused, entry.last_ms) == (old.paused, old.last_run_ms)
            assert old.paused or (entry.due_ms or 0) > (old.last_run_ms or 0)
        (again,) = run("--apply", "--yes")
        assert again["done"] == {}
        assert {key: client.dump(key) for key in client.keys("redbeat:*")} == theirs
    finally:
        client.close()
        opened.close()
        app.close()
