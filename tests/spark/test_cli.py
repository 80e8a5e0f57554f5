"""`wheel-sched spark`: every job from the command line, in the running session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from retry_topic.policy import load_policies
from retry_topic.spark.session import JavaMissing, check_java
from wheel_sched.cli.program import cli
from wheel_sched.store import DelayStore, Item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(url: str, *args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(cli, ["--store", url, "spark", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def parsed(url: str, *args: str, code: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run(url, *args, "--json", code=code).stdout)
    return value


def test_a_backfill_and_an_audit(redis_url: str, store: DelayStore, tmp_path: Path) -> None:
    """A dry run of a backfill stores nothing, a run stores all rows, and a second run stores none. Then an audit
    finds nothing."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(50)), "utf-8")
    columns = ("id=concat('n', n)", "due_ms=4000000000000 + n", "topic='t'", "value=to_json(struct(n))")
    job = ["backfill", str(file), "--job-id", "j"] + [part for column in columns for part in ("--column", column)]
    assert parsed(redis_url, *job, "--dry-run")["stored"] == 0
    assert parsed(redis_url, *job)["stored"] == 50
    assert "0 messages stored" in run(redis_url, *job).output
    assert parsed(redis_url, "audit")["healthy"] is True
    assert "nothing is wrong" in run(redis_url, "audit").output
    assert parsed(redis_url, "capacity", "--sample", "50")["messages"] == 50


def test_dead_letters_are_grouped_and_replayed(redis_url: str, store: DelayStore) -> None:
    """`dlq` counts dead letters. A replay needs a selection, and the option --yes where nobody can answer the
    question."""
    from retry_topic.message import Message
    from retry_topic.message.encoding import encode_body

    store.bury([(Item(f"d{n}", 5, encode_body(Message("t", b"x")), "t"), "broken: badly") for n in range(8)])
    assert parsed(redis_url, "dlq")["letters"] == 8
    assert "--where, --group or --all" in run(redis_url, "dlq", "--replay", code=2).output
    assert parsed(redis_url, "dlq", "--replay", "--all", "--dry-run")["replayed"] == 8
    assert store.counts().total("dead") == 8
    assert parsed(redis_url, "dlq", "--replay", "--where", "id < 'd3'", "--yes")["replayed"] == 3
    assert store.counts().total("dead") == 5


def test_a_history_is_judged_and_a_policy_file_written(redis_url: str, tmp_path: Path) -> None:
    """`slo` ends with exit code 1 if the objective is missed. `backtest` writes a policy file that can be loaded."""
    file = tmp_path / "attempts.jsonl"
    rows = []
    for n in range(40):
        row = {"id": f"m{n}", "topic": "t", "attempt": 1, "started_ms": 1000, "outcome": "failed", "error_class": "a.B"}
        rows += [
            row,
            {"id": f"m{n}", "topic": "t", "attempt": 2, "due_ms": 2000, "started_ms": 2500 + n, "outcome": "ok"},
        ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert parsed(redis_url, "slo", str(file), "--html", "page.html")["deliveries"] == 40
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    assert parsed(redis_url, "slo", str(file), "--target", "100ms", code=1)["met"] is False
    assert parsed(redis_url, "backtest", str(file), "--out", "p.toml", "--dry-run")["groups"][0]["messages"] == 40
    assert not (tmp_path / "p.toml").exists()
    run(redis_url, "backtest", str(file), "--out", "p.toml")
    assert load_policies(tmp_path / "p.toml").for_topic("t").rules[0].errors == ("a.B",)


def test_a_namespace_that_is_not_there_is_an_error(redis_url: str) -> None:
    """A missing namespace is an error and not an empty store."""
    assert "there is no namespace" in run(redis_url, "audit", code=2).stderr


def test_an_error_about_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Java is missing or too old, an error says what to install. It is raised before Spark starts."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="openjdk-17-jre-headless"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", "utf-8")
    java.chmod(0o755)
    with pytest.raises(JavaMissing, match=r'reports openjdk version "11\.0\.2"'):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="there is no java on the PATH"):
        check_java()


def test_an_intake(redis_url: str, store: DelayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run of an intake counts the records, a run stores all of them, and a second run reads none.

    The name of the retry topic comes from the settings.
    """
    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.message import Message
    from tests.servers.kafka import mock_kafka

    def intake(*args: str, servers: str) -> Any:
        result = CliRunner().invoke(cli, ["--store", redis_url, "--kafka", servers, "spark", "intake", "g", *args])
        assert result.exit_code == 0, result.output
        return result

    monkeypatch.setenv("WHEEL_SCHED_RETRY_TOPIC", "orders-again")
    with mock_kafka() as servers:
        broker = KafkaBroker(servers, transactions=False)
        broker.create_topic("orders-again")
        broker.publish([Message("orders-again", b"%d" % n, b"%d" % n) for n in range(40)])
        assert "up to 40 records" in intake("--dry-run", servers=servers).output
        done = json.loads(intake("--json", "--connector", "python", servers=servers).stdout)
        assert (done["records"], done["waiting"], done["lag"], done["connector"]) == (40, 40, 0, "python")
        assert sum(part["position"] or 0 for part in done["partitions"]) == 40
        assert "0 records read" in intake("--most", "10", servers=servers).output
        broker.close()
    assert sum(count for (state, _), count in store.counts().now.items() if state == "due") == 40
