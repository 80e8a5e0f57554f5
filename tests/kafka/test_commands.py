"""The Kafka commands as processes over a real broker: what they create, find and refuse, and how a service runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import admin as _typed_admin

from retry_topic import (
    Consumer,
    ConsumerConfig,
    DeadLetters,
    GroupTopics,
    Message,
    RetryPolicy,
    RetryService,
    ServiceConfig,
    connect,
)
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import verify

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

DAY_MS = 86_400_000
SECRET = b"sixteen bytes ok"
_admin: Any = _typed_admin  # the type stubs lack some exported names


@pytest.fixture
def broker(kafka: TemporaryKafka) -> Iterator[KafkaBroker]:
    """A client of the test session's Kafka broker."""
    broker = KafkaBroker(kafka.bootstrap)
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own folder, which has its data and settings."""
    monkeypatch.chdir(tmp_path)


def wheel_sched(kafka: str, name: str, *words: str) -> list[str]:
    """The words of a `wheel-sched` command."""
    return [sys.executable, "-m", "wheel_sched.cli", "--kafka", kafka, "--namespace", name, *words]


def run(kafka: str, name: str, *words: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Run a command and check its exit code. Returns the JSON objects of its stdout, and its stderr."""
    line = wheel_sched(kafka, name, *words, "--json")
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def settings_of(broker: KafkaBroker, topic: str) -> dict[str, str]:
    """The settings of a topic, read from the cluster."""
    resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, topic)
    (future,) = broker.topology.admin.describe_configs([resource], request_timeout=30).values()
    return {name: entry.value for name, entry in future.result(30).items()}


def test_a_groups_topics_have_sane_settings_whoever_creates_them(
    kafka: TemporaryKafka, broker: KafkaBroker, name: str
) -> None:
    """Topics from `init` have the user's settings. Topics that a service creates have this package's defaults."""
    run(
        kafka.bootstrap, name, "kafka", "init", name, "--setting", "retention.ms=3600000", "--dead-topic", f"{name}-dlt"
    )
    other = f"{name}-other"
    with (
        connect("memory:", broker=KafkaBroker(kafka.bootstrap), namespace=name) as connection,
        RetryService(connection, other),
    ):
        pass
    expected = {
        f"{name}.retry": 3_600_000,
        f"{name}-dlt": 3_600_000,
        f"{other}.retry": 7 * DAY_MS,
        f"{other}.redelivery": 7 * DAY_MS,
        f"{other}.dead": 30 * DAY_MS,
    }
    for topic, keep_ms in expected.items():
        found = settings_of(broker, topic)
        assert (found["cleanup.policy"], found["retention.ms"]) == ("delete", str(keep_ms)), topic
        assert found["max.message.bytes"] == str(8 * 1024 * 1024)
    assert settings_of(broker, f"{name}.claims")["cleanup.policy"] == "compact"
    assert f"{name}.dead" not in broker.topics()


def test_what_the_cluster_refuses_is_reported_in_its_words(
    kafka: TemporaryKafka, broker: KafkaBroker, name: str
) -> None:
    """More copies than brokers and an unknown setting are errors with the cluster's reason. No topic is created."""
    _, output = run(kafka.bootstrap, name, "kafka", "init", name, "--replication", "3", code=1)
    assert f"topic '{name}.retry' could not be created" in output
    assert "replication" in output.lower()
    _, output = run(kafka.bootstrap, name, "kafka", "init", name, "--setting", "retenton.ms=1", code=1)
    assert "retenton.ms" in output
    assert not [topic for topic in broker.topics() if topic.startswith(name)]


def test_the_doctor_finds_what_is_wrong_on_the_cluster(kafka: TemporaryKafka, name: str, tmp_path: Path) -> None:
    """`doctor` finds topics that refuse all writes, and timeouts in the wrong order."""
    run(kafka.bootstrap, name, "kafka", "init", name, "--setting", "min.insync.replicas=2")
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.bootstrap}\ndelivery.timeout.ms=20000\n")
    (report,), _ = run(str(file), name, "kafka", "doctor", name, code=1)
    found = {one["check"]: one for one in report["findings"]}
    assert {check for check, one in found.items() if one["level"] == "problem"} == {f"copies {name}", "time-outs"}
    assert "1 of 1 copies in sync, min.insync.replicas=2" in found[f"copies {name}"]["evidence"]
    assert found["time-outs"]["evidence"].endswith("60000 > 10000 > 20000 ms")
    (report,), _ = run(str(file), name, "kafka", "doctor", name, "--lease", "30s", code=1)
    assert {one["check"]: one["level"] for one in report["findings"]}["time-outs"] == "ok"


def test_the_doctor_finds_missing_topics_partitions_and_rights(
    kafka: TemporaryKafka, broker: KafkaBroker, name: str, tmp_path: Path
) -> None:
    """`doctor` finds absent topics, too few partitions, and a client that may not write in transactions."""
    rule = _admin.AclBinding(
        _admin.ResourceType.TRANSACTIONAL_ID,
        "wheel-sched-doctor-",
        _admin.ResourcePatternType.PREFIXED,
        "User:guest",
        "*",
        _admin.AclOperation.WRITE,
        _admin.AclPermissionType.DENY,
    )
    for future in broker.topology.admin.create_acls([rule]).values():
        future.result(30)
    broker.topology.create([f"{name}.retry", f"{name}.claims"])
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in kafka.as_guest().items()))
    (report,), _ = run(str(file), name, "--shards", "2", "kafka", "doctor", name, code=1)
    problems = {one["check"]: one for one in report["findings"] if one["level"] == "problem"}
    assert problems.keys() == {f"topics {name}", "claims", "rights"}
    assert problems[f"topics {name}"]["evidence"] == f"absent: {name}.redelivery, {name}.dead"
    assert problems[f"topics {name}"]["fix"] == f"wheel-sched kafka init {name}"
    assert problems["claims"]["evidence"] == f"{name}.claims has 1 partition for 2 shards"
    assert "authorization failed" in problems["rights"]["evidence"].lower()
    (report,), _ = run(str(file), name, "--no-transactions", "kafka", "doctor", f"{name}-b", code=1)
    assert "rights" not in {one["check"] for one in report["findings"]}  # not needed without transactions


def test_signed_letters_are_replayed_signed_and_not_for_ever(
    kafka: TemporaryKafka, name: str, until: Until, tmp_path: Path
) -> None:
    """A replay signs the messages again. Without a secret it is an error. A message that was replayed as often as
    allowed is not replayed again."""
    file = tmp_path / "secrets"
    file.write_bytes(SECRET)
    words = ("kafka", "replay", name, "--max-replays", "1", "--yes")
    run(kafka.bootstrap, name, "kafka", "init", name)

    def handle(_: Message) -> None:
        raise ValueError("never")

    broker = KafkaBroker(kafka.bootstrap)
    broker.create_topic(f"{name}-orders")
    with (
        connect("embedded:data", broker=broker, namespace=name) as connection,
        RetryService(connection, name, RetryPolicy(max_attempts=1), config=ServiceConfig(secrets=(SECRET,))),
        Consumer(connection, f"{name}-orders", handle, group=name, config=ConsumerConfig(secrets=(SECRET,))),
    ):
        assert not any(broker.publish([Message(f"{name}-orders", b"letter", b"key")]))
        until(lambda: connection.store.counts().total("dead") == 1)
        _, output = run(kafka.bootstrap, name, "--store", "embedded:data", *words, code=2)
        assert "--secrets FILE" in output
        store = ("--store", "embedded:data", "--secrets", str(file))
        done, _ = run(kafka.bootstrap, name, *store, *words)
        assert done == [{"replayed": 1, "guarded": 0}]
        until(lambda: connection.store.counts().total("dead") == 2)
        letters = [*DeadLetters(connection).select()]
        found = [letter.state for letter in letters]
        assert sorted((one.attempt, one.replays, one.original_topic) for one in found) == [
            (1, 0, f"{name}-orders"),
            (1, 1, f"{name}-orders"),
        ]
        assert not any(verify(one.state, one.message, SECRET, name).unsigned for one in letters if one.message)
        done, _ = run(kafka.bootstrap, name, *store, *words, code=1)
        assert done == [{"replayed": 0, "guarded": 1}]


@pytest.mark.parametrize(
    ("options", "hand_over"),
    [
        (("--group-protocol", "consumer"), "transactions"),
        (("--no-transactions",), "claim, publish, settle"),
    ],
    ids=("kip-848", "no-transactions"),
)
def test_a_service_brings_back_what_failed(
    kafka: TemporaryKafka, name: str, tmp_path: Path, options: tuple[str, ...], hand_over: str
) -> None:
    """The documentation's steps work: create topics, run a service. The service uses the retry topic that an option
    names."""
    (tmp_path / "retry.toml").write_text('[default]\ndelay = { kind = "fixed", base = "100ms" }\n')
    topics = GroupTopics(retry=f"{name}-retry")
    named = ("--retry-topic", f"{name}-retry")
    run(kafka.bootstrap, name, "kafka", "init", name, *named)
    words = ("--store", "embedded:data", *options, "serve", name, *named, "--policies", "retry.toml", "--json")
    service = subprocess.Popen(
        wheel_sched(kafka.bootstrap, name, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output = ""
        assert service.stderr is not None
        while "serving" not in output:
            output = service.stderr.readline()
            assert output, "the service has ended"
        assert f"hand-over: {hand_over}" in output
        seen: list[str] = []
        done = threading.Event()

        def handle(message: Message) -> None:
            seen.append(message.topic)
            if len(seen) < 3:
                raise OSError("not yet")
            done.set()

        client = KafkaBroker(kafka.bootstrap, transactions="--no-transactions" not in options)
        with connect("embedded:data", broker=client, namespace=name) as connection:
            config = ConsumerConfig(group_topics=topics)
            client.create_topic(f"{name}-orders")
            with Consumer(connection, f"{name}-orders", handle, group=name, config=config):
                assert not any(client.publish([Message(f"{name}-orders", b"one")]))
                assert done.wait(90), seen
        assert seen[:3] == [f"{name}-orders"] * 3
        service.send_signal(signal.SIGTERM)
        out, err = service.communicate(timeout=60)
        assert service.returncode == 0, err
        assert "Traceback" not in err
        (summary,) = map(json.loads, out.splitlines())
        assert summary["group"] == name
        assert summary["published"] >= 2
    finally:
        service.kill()
        service.communicate()
