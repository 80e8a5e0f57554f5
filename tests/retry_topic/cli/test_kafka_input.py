"""Wrong input of the Kafka commands causes a readable error and an exit code, and nothing is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.cli.group_topics import topics_options
from retry_topic.dead_letters.dead_topic import LetterToMessage
from retry_topic.management.kafka_checks import copies, creation, longest_transaction, retention, timeouts
from retry_topic.management.opening import kafka_settings, secrets_of
from retry_topic.management.settings import RetrySettings
from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState, read, sign, verify, write
from retry_topic.message.topic_names import GroupTopics
from tests.servers.kafka import mock_kafka
from wheel_sched.cli.options import Session
from wheel_sched.config import load_settings
from wheel_sched.errors import ConfigError
from wheel_sched.management.doctor.finding import Finding
from wheel_sched.store import Item

COMMANDS = (("init", "g"), ("lag", "g"), ("replay", "g", "--dry-run"), ("doctor", "g"))
NOWHERE = "127.0.0.1:1"
SECRET = b"sixteen bytes ok"


@pytest.fixture
def away(cli_at: Any) -> Any:
    """A command line whose store does not answer."""
    return cli_at("redis://127.0.0.1:1/0")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("kafka", "error_text"),
    [
        ((), "which cluster?"),
        (("--kafka", "absent.properties"), "readable file of client properties"),
        (("--kafka", "java.properties"), "setting sasl.jaas.config to be librdkafka's"),
        (("--kafka", "torn.properties"), "torn.properties, line 2: expected name=value"),
        (("--kafka", "nameless.properties"), "settings with bootstrap.servers"),
        (("--kafka", NOWHERE, "--group-protocol", "newest"), "--group-protocol"),
    ],
    ids=("none", "absent", "java", "torn", "nameless", "protocol"),
)
def test_settings_that_cannot_be(away: Any, command: tuple[str, ...], kafka: tuple[str, ...], error_text: str) -> None:
    """Wrong Kafka settings end with exit code 2 before any connection. The error does not quote the settings file."""
    login = 'sasl.jaas.config=PlainLoginModule required \\\n  password="hunter2";\n'
    Path("java.properties").write_text(f"# ours\nbootstrap.servers={NOWHERE}\n{login}")
    Path("torn.properties").write_text(f"bootstrap.servers={NOWHERE}\nhunter2\n")
    Path("nameless.properties").write_text("client.id=x\n")
    shown = away(*kafka, "kafka", *command, code=2).output
    assert error_text in " ".join(shown.split())
    assert "hunter2" not in shown


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        (("a b",), "expected group to be"),
        (("ä",), "expected a Kafka topic of"),
        (("g", "--dead-topic", "g.retry"), "to be distinct"),
        (("g", "--retry-topic", "a/b"), "expected a Kafka topic of"),
        ((), "Missing argument"),
    ],
    ids=("blank", "letter", "same", "slash", "missing"),
)
def test_groups_and_topics_that_cannot_be(
    away: Any, command: tuple[str, ...], options: tuple[str, ...], error_text: str
) -> None:
    """Wrong group or topic names are refused before the cluster is asked."""
    shown = away("--kafka", NOWHERE, "kafka", command[0], *options, code=2).output
    assert error_text in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        (("g", "--replication", "0"), "at least 1 copy"),
        (("g", "--partitions", "0"), "0 is not in the range"),
        (("g", "--setting", "retention.ms"), "expected NAME=VALUE"),
        (("g", "h", "--retry-topic", "r"), "one group at a time"),
    ],
)
def test_what_init_cannot_do(away: Any, options: tuple[str, ...], error_text: str) -> None:
    """Wrong options of `kafka init` are refused before the cluster is asked."""
    assert error_text in " ".join(away("--kafka", NOWHERE, "kafka", "init", *options, code=2).output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_cluster_that_is_away_is_69(away: Any, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cluster does not answer, the exit code is 69, as for a store that does not answer."""
    monkeypatch.setattr("retry_topic.brokers.kafka.topology.TIMEOUT_S", 0.2)
    shown = away("--kafka", NOWHERE, "kafka", *command, code=69).output
    assert "the list of topics could not be read" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "g"),
        ("publish", "t", "x", "--create"),
        ("topics",),
        ("list",),
        ("run-now", "--all"),
        ("replay", "--all"),
    ],
    ids=lambda command: command[0],
)
def test_no_other_command_makes_anything_with_settings_that_cannot_be(cli_at: Any, command: tuple[str, ...]) -> None:
    """With wrong Kafka settings, no command creates a data folder."""
    Path("java.properties").write_text(f"bootstrap.servers={NOWHERE}\nsasl.jaas.config=x\n")
    shown = cli_at("embedded:data")("--kafka", "java.properties", *command, code=2).output
    assert "sasl.jaas.config" in shown
    assert not Path("data").exists()


def test_properties_as_java_writes_them(tmp_path: Path) -> None:
    """A properties file may have comments, blanks, continued lines and values with an equals sign."""
    file = tmp_path / "client.properties"
    file.write_text("# a\n! b \\\n\nbootstrap.servers = a:1,\\\n    b:2\nssl.key.password=x=y\r\n")
    assert kafka_settings(str(file)) == {"bootstrap.servers": "a:1,b:2", "ssl.key.password": "x=y"}


def test_the_settings_of_kafka_come_from_all_places(tmp_path: Path) -> None:
    """Kafka settings come from flag, environment and file. The error for a wrong value names where it comes from."""
    file = tmp_path / "wheel-sched.toml"
    file.write_text('group_protocol = "consumer"\ntransactions = false\nsecrets = "keys"\n')
    loaded = load_settings(
        {"group_protocol": "classic"}, env={"WHEEL_SCHED_TRANSACTIONS": "True"}, file=file, kinds=(RetrySettings,)
    )
    settings = loaded.read(RetrySettings)
    assert (settings.group_protocol, settings.transactions, settings.secrets) == (
        "classic",
        True,
        str(tmp_path / "keys"),
    )
    with pytest.raises(ConfigError) as caught:
        load_settings({"group_protocol": "new"}, env={"WHEEL_SCHED_TRANSACTIONS": "maybe"}, kinds=(RetrySettings,))
    assert len(caught.value.problems) == 2
    assert "flag --group-protocol: expected group_protocol to be classic or consumer" in str(caught.value)


def test_a_groups_topics_are_named_in_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's topic names come from flag, environment and file. They can be set for one group at a time only."""
    seen: list[GroupTopics] = []

    @click.command()
    @click.argument("groups", nargs=-1)
    @topics_options
    def command(groups: tuple[str, ...], topics: GroupTopics) -> None:
        seen.append(topics)

    file = tmp_path / "s.toml"
    file.write_text('retry_topic = "from-file"\nredelivery_topic = "from-file-too"\ndead_topic = "hidden"\n')
    monkeypatch.setenv("WHEEL_SCHED_REDELIVERY_TOPIC", "from-env")
    named = ["--dead-topic", "from-flag"]
    result = CliRunner().invoke(command, ["g", *named], obj=Session({}, str(file)))
    assert result.exit_code == 0, result.output
    assert seen == [GroupTopics("from-file", "from-env", "from-flag")]
    result = CliRunner().invoke(command, ["g", "h"], obj=Session({}, str(file)))
    assert result.exit_code == 2
    assert "one group at a time" in result.output
    monkeypatch.delenv("WHEEL_SCHED_REDELIVERY_TOPIC")
    assert CliRunner().invoke(command, ["g", "h"], obj=Session({})).exit_code == 0
    assert seen[1:] == [GroupTopics()]


def test_the_flag_of_the_protocol_is_nearer_than_the_clients_file(tmp_path: Path) -> None:
    """--group-protocol overrides the client properties file. Without the flag, the file's value is used."""
    from retry_topic.management.opening import kafka_broker

    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={NOWHERE}\ngroup.protocol=consumer\n")
    for protocol, meant in ((None, "consumer"), ("classic", "classic")):
        broker = kafka_broker(RetrySettings(kafka=str(file), group_protocol=protocol, transactions=False))
        assert broker.member_settings("g", 30_000)["group.protocol"] == meant
        assert not broker.transactions


@pytest.mark.parametrize(
    ("content", "error_text"), [(b"\n", "an empty file"), (b"short\n", "at least 16 bytes, got: 5")]
)
def test_a_file_of_secrets_that_helps_nobody(tmp_path: Path, content: bytes, error_text: str) -> None:
    """An empty secrets file or too short a secret is refused. The error does not contain the secret."""
    file = tmp_path / "secrets"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=error_text) as caught:
        secrets_of(RetrySettings(secrets=str(file)))
    assert "short" not in str(caught.value)


def test_a_replay_without_the_secrets_it_needs_does_nothing(away: Any) -> None:
    """If the secrets file cannot be read, `kafka replay` fails before the cluster is asked."""
    shown = away("--kafka", NOWHERE, "--secrets", "absent", "kafka", "replay", "g", code=2).output
    assert "readable file of secrets" in " ".join(shown.split())


def test_secrets_are_lines_of_a_file(tmp_path: Path) -> None:
    """Each line of the file is a secret. The order is kept, because the first secret signs."""
    file = tmp_path / "secrets"
    file.write_bytes(SECRET + b"\r\n\nanother secret of ours\n")
    assert secrets_of(RetrySettings(secrets=str(file))) == (SECRET, b"another secret of ours")
    assert secrets_of(RetrySettings()) == ()


LETTER_STATE = RetryState(id="x", attempt=8, original_topic="orders", consumer_group="g")


def letter(*, signed: bool) -> Message:
    bare = Message("g.dead", b"v", b"k", source=Source("g.dead", 2, "7", 0))
    state = sign(LETTER_STATE, bare, SECRET) if signed else LETTER_STATE
    return replace(bare, headers=write((("own", b"1"),), state))


def test_a_replayed_letter_is_signed_anew_under_an_id_of_its_own() -> None:
    """A replayed letter gets a new id. A repeat of the same replay gets that id too. The attempt count is 0 again, and
    the application's headers are kept."""
    own = GroupTopics().of("g")
    convert = LetterToMessage("g", own, own["redelivery"], "topic-id", (SECRET,))
    again = convert(letter(signed=True), 2)
    state = read(again.headers)
    assert verify(state, again, SECRET, "g") is state
    assert (state.attempt, state.replays, state.original_topic, state.consumer_group) == (0, 2, "orders", "g")
    assert state.id not in (None, "x")
    assert again.header("own") == b"1"
    assert again == convert(letter(signed=True), 2)
    with pytest.raises(ConfigError, match="--secrets FILE"):
        replace(convert, secrets=())(letter(signed=True), 1)
    plain = replace(convert, to="elsewhere", secrets=())(letter(signed=False), 1)
    assert read(plain.headers).signature is None
    assert read(plain.headers).original_topic == "elsewhere"  # the new topic becomes its origin


def test_the_doctor_compares_time_outs_that_are_set() -> None:
    """`doctor` compares the Kafka client's timeouts with the dispatcher's lease."""
    assert timeouts(KafkaBroker(NOWHERE), 10_000).level == "ok"
    assert timeouts(KafkaBroker(NOWHERE), 8_000).level == "problem"
    assert timeouts(KafkaBroker(NOWHERE), 60_000).level == "problem"
    slow = timeouts(KafkaBroker({"bootstrap.servers": NOWHERE, "delivery.timeout.ms": "20000"}), 10_000)
    assert (slow.level, slow.evidence) == (
        "problem",
        "expected transaction > lease > delivery, got: 60000 > 10000 > 20000 ms",
    )


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (retention({}), "ok"),
        (retention({"offsets.retention.minutes": "2879"}), "problem"),
        (longest_transaction({"transaction.max.timeout.ms": "60000"}, 60_000), "ok"),
        (longest_transaction({"transaction.max.timeout.ms": "59999"}, 60_000), "problem"),
        (creation({"auto.create.topics.enable": "false"}), "ok"),
        (creation({"auto.create.topics.enable": "true"}), "warn"),
        (copies("g", {"t": (3, 3)}, {"t": 2}, 3), "ok"),
        (copies("g", {"t": (1, 1)}, {"t": 1}, 1), "ok"),
        (copies("g", {"t": (1, 1)}, {"t": 1}, 3), "warn"),
        (copies("g", {"t": (3, 3)}, {"t": 1}, 3), "warn"),
        (copies("g", {"t": (3, 3)}, {"t": 3}, 3), "warn"),
        (copies("g", {"t": (1, 1)}, {"t": 2}, 1), "problem"),
        (copies("g", {"t": (3, 1)}, {"t": 2}, 3), "problem"),
    ],
)
def test_each_finding_of_the_doctor_has_a_mend(finding: Finding, level: str) -> None:
    """Each finding of `doctor` that is not ok says what to do."""
    assert finding.level == level
    assert bool(finding.fix) == (level != "ok")


@pytest.fixture(scope="module")
def imitation() -> Iterator[str]:
    """The address of librdkafka's mock cluster."""
    with mock_kafka() as servers:
        yield servers


def test_a_replayed_letter_goes_home_and_elsewhere_is_elsewhere() -> None:
    """A replay to the group keeps the partition and time of the original record. A replay to another topic does not."""
    state = RetryState(id="x", attempt=3, original_topic="t", original_partition=2, original_timestamp_ms=1_700)
    dead = Message("g.dead", b"v", b"k", write((), state))
    convert = LetterToMessage("g", {"redelivery": "g.redelivery"}, "g.redelivery", "topic-id")
    connection = convert(dead, 1)
    assert (connection.topic, connection.partition, connection.timestamp_ms) == ("g.redelivery", 2, 1_700)
    assert read(connection.headers).original_partition == 2
    away = replace(convert, to="elsewhere")(dead, 1)
    assert (away.partition, away.timestamp_ms, read(away.headers).original_topic) == (None, None, "elsewhere")


@pytest.mark.real
def test_topics_that_are_not_there_are_not_replayed_from_or_to(away: Any, imitation: str) -> None:
    """`kafka replay` refuses source or target topics that do not exist, and does not create them."""
    shown = away("--kafka", imitation, "kafka", "replay", "h", "--yes", code=1).output
    assert "there is no topic 'h.dead': nothing was replayed" in shown
    broker = KafkaBroker(imitation, transactions=False)
    broker.create_topic("h.dead")
    shown = away("--kafka", imitation, "kafka", "replay", "h", "--to", "nowhere", "--yes", code=1).output
    assert "there is no topic 'nowhere': nothing was replayed" in shown
    assert "nowhere" not in broker.topics()
    broker.close()


@pytest.mark.real
def test_the_doctor_of_the_store_shows_kafkas_hand_over(cli: Any) -> None:
    """`doctor` says how messages get from the store to Kafka, without asking the cluster. Wrong settings
    are a problem."""
    hand_over = {
        "--no-transactions": "claim, publish, settle: at least once",
        "--transactions": "transactions: exactly",
    }
    for flag, evidence in hand_over.items():
        found = {one["check"]: one for one in cli.json("--kafka", NOWHERE, flag, "doctor")["findings"]}
        assert found["hand-over"]["evidence"].startswith(evidence)
    Path("java.properties").write_text(f"bootstrap.servers={NOWHERE}\nsasl.jaas.config=x\n")
    report = cli.json("--kafka", "java.properties", "doctor", code=1)
    assert [one["check"] for one in report["findings"] if one["level"] != "ok"] == ["hand-over"]


@pytest.mark.real
def test_the_doctor_reports_what_is_in_doubt(connection: Any, redis_url: str) -> None:
    """`doctor` counts messages held because nobody knows whether Kafka has them. Other held messages do not count."""
    from retry_topic.management.kafka_checks import in_doubt

    settings = RetrySettings(store=redis_url)
    connection.store.schedule([Item(f"m{n}", 4_000_000_000_000, b"x") for n in range(3)])
    connection.store.hold(["m0"], "somebody wanted it")
    assert in_doubt(settings).level == "ok"
    connection.store.hold(["m1", "m2"], "in-doubt: nobody knows whether claim 7 went out")
    assert in_doubt(settings).evidence.startswith("2 messages are held")
    assert in_doubt(RetrySettings(store=redis_url, namespace="absent")).level == "ok"
    assert in_doubt(RetrySettings(store="redis://127.0.0.1:1/0")).level == "warn"
