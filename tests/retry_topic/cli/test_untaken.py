"""Commands report retries that no service reads and items that no dispatcher releases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, GroupTopics, Message, RetryService
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message.headers import RetryState, write
from wheel_sched.errors import BrokerError
from wheel_sched.store import Member, Members

if TYPE_CHECKING:
    from retry_topic import Connection


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fails(message: Message) -> None:
    raise ValueError("no such customer")


@pytest.fixture(autouse=True)
def _quick_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers and services check more often whether they should stop."""
    monkeypatch.setattr("retry_topic.consumer.consumer._POLL_MS", 10)
    monkeypatch.setattr("retry_topic.intake.worker._POLL_MS", 10)


@pytest.fixture
def forgotten(connection: Connection) -> None:
    """Five failed messages in the retry topic, and no retry service."""
    connection.broker.create_topic("orders")
    for number in range(5):
        connection.publish("orders", b"%d" % number)
    with Consumer(connection, "orders", fails, group="billing") as consumer:
        until_s = time.monotonic() + 30
        while consumer.stats.retried < 5:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls until the consumer's thread has finished


def test_stats_names_retries_that_nobody_takes_in(cli: Any, forgotten: None) -> None:
    """`stats` prints how many retries wait, since when, in which topic, and the command that starts a service. The JSON
    has the numbers."""
    text = cli("stats").stdout
    assert "retries    5 retries wait in billing.retry, the oldest for " in text
    assert "no service reads them: start `wheel-sched serve billing`" in text
    (found,) = cli.json("stats")["untaken"]
    assert (found["group"], found["topic"], found["waiting"]) == ("billing", "billing.retry", 5)
    assert found["silent_ms"] is None
    assert abs(found["oldest_ms"] - now_ms()) < 60_000


@pytest.mark.parametrize(
    "args", [("list",), ("list", "--dead"), ("list", "--dead", "--group"), ("list", "--state", "held")]
)
def test_an_empty_listing_does_not_hide_them(cli: Any, forgotten: None, args: tuple[str, ...]) -> None:
    """Even an empty list has the note about retries that no service reads."""
    assert "5 retries wait in billing.retry" in cli(*args).stderr


def test_doctor_adds_the_checks_of_retry_topics(cli: Any, connection: Connection, wait_for: Any) -> None:
    """`doctor` also runs the checks of retry topics. On a healthy namespace they are ok."""
    wait_for("w", now_ms() + 3_600_000)
    found = {finding["check"]: finding for finding in cli.json("doctor")["findings"]}
    assert found["hand-over"]["evidence"].startswith("one script: exactly once")
    assert found["retries"]["level"] == "ok"
    assert len(found) == 22


def test_doctor_finds_them(cli: Any, forgotten: None) -> None:
    """`doctor` reports retries that no service reads as a problem, with the command that fixes it."""
    report = cli.json("doctor", code=1)
    (found,) = [finding for finding in report["findings"] if finding["check"] == "retries"]
    assert found["level"] == "problem"
    assert "5 retries wait in billing.retry" in found["evidence"]
    assert "wheel-sched serve billing" in found["fix"]


def test_a_service_that_runs_is_no_finding(cli: Any, connection: Connection, forgotten: None) -> None:
    """While a service runs, `stats` reports nothing about its retry topic."""
    with RetryService(connection, "billing"):
        text = cli("stats")
        assert "no service" not in text.stdout
        assert cli.json("stats")["untaken"] == []


def test_a_service_that_was_stopped_is_one(cli: Any, connection: Connection) -> None:
    """After the service has stopped, its group has no members, and `stats` reports the waiting retry."""
    with RetryService(connection, "billing"):
        pass
    connection.broker.publish([Message("billing.retry", b"1")])
    assert "1 retry waits in billing.retry, for " in cli("stats").stdout


def check_of_retries(cli: Any, *options: str, code: int) -> dict[str, str]:
    findings = cli.json(*options, "doctor", code=code)["findings"]
    (found,) = [one for one in findings if one["check"] == "retries"]
    return found  # type: ignore[no-any-return]


def test_a_live_service_that_reads_nothing_is_named(cli: Any, connection: Connection, forgotten: None) -> None:
    """A service is live and its topic is not read: it is stuck, or it was killed and its lease has not ended. The
    advice is to look at its log before another one is started."""
    service = Member("retry-service", "billing", takes_in=("billing.retry",), host="web-1", pid=77)
    Members(connection.store).announce(service, 60_000)
    found = check_of_retries(cli, code=1)
    assert "5 retries wait in billing.retry" in found["evidence"]
    assert found["fix"].startswith("see the log of retry-service billing (pid 77 on web-1, seen ")
    assert found["fix"].endswith("; if it has died, start `wheel-sched serve billing`")
    for text in (cli("stats").stdout, cli("list").stderr):
        assert "see the log of retry-service billing (pid 77 on web-1" in text


@pytest.mark.parametrize("options", [(), ("--kafka", "127.0.0.1:1")])
def test_live_consumers_without_a_live_service_are_found(
    cli: Any, connection: Connection, options: tuple[str, ...]
) -> None:
    """A consumer announces itself in the store, and no service does. `doctor` warns of this before any message has
    failed, and on Kafka too, because it reads only the announcements."""
    connection.broker.create_topic("orders")
    with Consumer(connection, "orders", fails, group="billing"):
        until_s = time.monotonic() + 30
        while not Members(connection.store).live():
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls until the consumer has announced itself
        found = check_of_retries(cli, *options, code=0)
        assert found["level"] == "warn"
        assert "consumers of billing write failed messages to billing.retry, and no live service" in found["evidence"]
        assert found["fix"] == "start `wheel-sched serve billing`"
        assert cli.json(*options, "stats")["unserved"] == [{"group": "billing", "topic": "billing.retry"}]
        assert "takes them in: start `wheel-sched serve billing`" in cli(*options, "stats").stdout
        Members(connection.store).announce(Member("retry-service", "b", takes_in=("billing.retry",)), 60_000)
        assert check_of_retries(cli, *options, code=0)["level"] == "ok"
        assert cli.json(*options, "stats")["unserved"] == []


def test_what_is_untaken_is_reported_once(cli: Any, connection: Connection, forgotten: None) -> None:
    """A topic with waiting retries is not reported a second time for its consumers."""
    Members(connection.store).announce(Member("consumer", "billing", retries_to="billing.retry"), 60_000)
    assert cli.json("stats")["unserved"] == []
    assert cli("stats").stdout.count("billing.retry") == 1
    assert check_of_retries(cli, code=1)["level"] == "problem"


def test_a_retry_topic_of_another_name_is_found_by_the_settings(
    cli: Any, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stats` finds the retry topic `spring-retry` only if the setting `retry_topic` names it. The headers of its
    records name the group."""
    connection.broker.create_topic("spring-retry")
    headers = write((), RetryState(id="x", consumer_group="billing"))
    connection.broker.publish([Message("spring-retry", b"1", headers=headers)])
    assert cli.json("stats")["untaken"] == []
    monkeypatch.setenv("WHEEL_SCHED_RETRY_TOPIC", "spring-retry")
    assert "start `wheel-sched serve billing --retry-topic spring-retry`" in cli("stats").stdout


def test_a_retry_topic_of_another_name_is_found_by_what_its_consumer_wrote(cli: Any, connection: Connection) -> None:
    """The headers of the consumer's records show which topic is the retry topic. The group's other topics are not
    reported."""
    connection.broker.create_topic("orders")
    topics = GroupTopics(retry="my-retries", redelivery="my-redelivery", dead="my-dead")
    connection.publish("orders", b"1")
    config = ConsumerConfig(group_topics=topics)
    with Consumer(connection, "orders", fails, group="billing", config=config) as consumer:
        until_s = time.monotonic() + 30
        while consumer.stats.retried < 1:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls until the consumer's thread has finished
    sent_on = RetryState(id="x", attempt=1, consumer_group="billing", policy="default@1", due_ms=now_ms())
    for topic in ("my-redelivery", "my-dead"):
        connection.broker.publish([Message(topic, b"1", headers=write((), sent_on))])
    (found,) = cli.json("stats")["untaken"]
    assert (found["group"], found["topic"], found["waiting"]) == ("billing", "my-retries", 1)
    assert "1 retry waits in my-retries" in cli("list").stderr
    command = (
        "start `wheel-sched serve billing --retry-topic my-retries`, and with the --redelivery-topic and --dead-topic"
    )
    (shown,) = [one for one in cli.json("doctor", code=1)["findings"] if one["check"] == "retries"]
    assert command in shown["fix"]


def test_a_topic_whose_key_is_no_stream_hides_no_other(cli: Any, connection: Connection, forgotten: None) -> None:
    """`stats` skips a topic whose key is not a stream, and still reports the others."""
    connection.broker.create_topic("odd")
    client: Any = connection.store.backend.client  # type: ignore[attr-defined]
    client.delete("odd")
    client.set("odd", "1")
    assert "5 retries wait in billing.retry" in cli("stats").stdout


@pytest.mark.parametrize("command", ["stats", "list", "doctor"])
def test_on_kafka_it_is_said_that_nobody_looked(cli: Any, forgotten: None, command: str) -> None:
    """With Kafka, the commands say that they did not look for retries that no service reads. They name `kafka lag`,
    which does."""
    shown = cli("--kafka", "127.0.0.1:1", command, code=None).output
    assert "not looked at on Kafka: `wheel-sched kafka lag GROUP`" in shown


def test_on_kafka_scripts_are_reported_that_it_is_not_known(cli: Any, forgotten: None) -> None:
    """With Kafka, the JSON of `stats` has null for `untaken`, not an empty list."""
    assert cli.json("--kafka", "127.0.0.1:1", "stats")["untaken"] is None


@pytest.mark.parametrize("command", ["stats", "list"])
def test_a_server_that_refuses_to_answer_fails_no_command(
    cli: Any, forgotten: None, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """If Redis does not permit XINFO, the commands print everything else and a note."""

    def refused(*_: object) -> None:
        raise BrokerError("no permission to run 'xinfo|groups'")

    monkeypatch.setattr(RedisStreamsBroker, "backlog", refused)
    assert "retry topics could not be looked at: no permission" in cli(command).stderr
    assert cli.json("stats")["untaken"] is None


def test_items_that_no_dispatcher_releases_are_reported(cli: Any, wait_for: Any) -> None:
    """`stats` and `doctor` say how many items are overdue, by how much, and what releases them."""
    for number in range(3):
        wait_for(f"m{number}", now_ms() - 60_000)
    wait_for("later", now_ms() + 3_600_000)
    text = cli("stats").stdout
    assert "overdue    3 items are overdue, the first by 1m: no dispatcher releases them; start an APScheduler" in text
    shown = cli.json("stats")
    assert shown["overdue"] == 3
    assert shown["overdue_ms"] >= 60_000
    (found,) = [one for one in cli.json("doctor", code=1)["findings"] if one["check"] == "backlog"]
    assert found["level"] == "problem"
    assert "3 items are overdue, the first by 1m" in found["evidence"]
    assert "wheel-sched serve" in found["fix"]


@pytest.mark.parametrize("topic", ["billing.redelivery", "orders"])
def test_the_service_of_overdue_messages_is_named(cli: Any, connection: Connection, wait_for: Any, topic: str) -> None:
    """The group is known by its redelivery topic, or by a live consumer that reads the topic."""
    wait_for("m", now_ms() - 60_000, topic=topic)
    consumer = Member("consumer", "billing", topics=("orders", "billing.redelivery"), retries_to="billing.retry")
    Members(connection.store).announce(consumer, 60_000)
    advice = "start `wheel-sched serve billing`; if one runs, see its log"
    assert f"no dispatcher releases them; {advice}" in cli("stats").stdout
    (found,) = [one for one in cli.json("doctor", code=1)["findings"] if one["check"] == "backlog"]
    assert found["fix"] == advice


def test_a_command_that_is_shown_can_be_copied(cli: Any, connection: Connection, wait_for: Any) -> None:
    """`stats` shows a command with names from messages and members. A name with characters of the shell is quoted."""
    wait_for("m", now_ms() - 60_000, topic="$(reboot).redelivery")
    assert "start `wheel-sched serve '$(reboot)'`" in cli("stats").stdout
    Members(connection.store).announce(Member("consumer", "a;b", retries_to="a;b.retry"), 60_000)
    assert "start `wheel-sched serve 'a;b'`" in cli("stats").stdout


def test_what_has_just_come_due_is_no_finding(cli: Any, wait_for: Any) -> None:
    """`stats` does not report an item that is overdue by a moment, because a dispatcher may be about to claim it."""
    wait_for("m", now_ms() - 10)
    assert "overdue " not in cli("stats").stdout
