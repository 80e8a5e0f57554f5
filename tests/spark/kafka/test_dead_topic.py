"""Dead letters in a topic of a real broker are grouped and sent to their origin, each once, whatever fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, read, write
from retry_topic.spark.jobs import replay_topic, topic_letters, triage
from retry_topic.spark.jobs.dlq import select
from wheel_sched.cli.program import cli
from wheel_sched.errors import BrokerError, ConfigError, Rejected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "processes" / "replay.py"


def letter(dead: str, origin: str, n: int) -> Message:
    """The dead letter `n`, as a retry service writes it to a dead topic. Every third letter has another error."""
    state = RetryState(
        id=f"root-{n}",
        attempt=8,
        original_topic=origin,
        consumer_group=dead.removesuffix(".dead"),
        error_class="shop.BadCurrency" if n % 3 == 0 else "shop.Timeout",
        error_message="EURO is no currency" if n % 3 == 0 else f"no answer after {n} ms",
        error_fingerprint="bbbb00000000" if n % 3 == 0 else "aaaa00000000",
        replays=3 if n == 1 else 0,
        error_status=503,
    )
    payload = json.dumps({"n": n, "currency": "EURO"}).encode()
    return Message(dead, payload, b"k%d" % n, write((("trace", b"\xff"),), state))


@pytest.fixture
def topics(broker: KafkaBroker, name: str) -> tuple[str, str]:
    """Create a dead topic with 120 dead letters, and the topic in which their messages first failed. Return the names
    of both."""
    dead, origin = f"{name}.dead", f"{name}-orders"
    for topic in (dead, origin):
        broker.create_topic(topic)
    broker.publish([letter(dead, origin, n) for n in range(120)])
    broker.groups.put(name, [TopicPartition(origin, 0, 0)])  # its group reads the origin
    return dead, origin


def test_headers_choose_no_topic_that_the_group_does_not_read(
    spark: SparkSession, kafka: TemporaryKafka, broker: KafkaBroker, topics: tuple[str, str], name: str
) -> None:
    """Anybody may have set a letter's headers. So the topic that they name is accepted only if the group reads it
    or the caller allows it."""
    dead, _ = topics
    broker.create_topic(f"{name}-payroll")
    broker.publish([letter(dead, f"{name}-payroll", 300)])
    chosen = topic_letters(spark, kafka.bootstrap, dead).where(f"topic = '{name}-payroll'")
    with pytest.raises(ConfigError, match="does not read: nothing was replayed"):
        replay_topic(chosen, kafka.bootstrap, dead)
    assert replay_topic(chosen, kafka.bootstrap, dead, origins=[f"{name}-payroll"]).replayed == 1


def numbers(values: Counter[str]) -> Counter[int]:
    """Count how often each message is among these values. A message is known by the number in its payload."""
    found: Counter[int] = Counter()
    for value, count in values.items():
        found[json.loads(value)["n"]] += count
    return found


def test_a_selection_goes_to_its_origin_once(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    topics: tuple[str, str],
    committed: Callable[[str], Counter[str]],
) -> None:
    """A second replay of the same selection sends nothing. A replay of all letters sends only those not sent before.

    A later replay sends a letter that arrived meanwhile.
    """
    dead, origin = topics
    letters = topic_letters(spark, kafka.bootstrap, dead)
    groups = [tuple(row)[:4] for row in triage(letters).collect()]
    assert groups == [(origin, "shop.Timeout", "aaaa00000000", 80), (origin, "shop.BadCurrency", "bbbb00000000", 40)]
    some = select(letters, where="attempt = 8 and status = 503", group="bbbb")
    repair = "replace(text, 'EURO', 'EUR')"
    tried = replay_topic(some, kafka.bootstrap, dead, repair=repair, dry_run=True)
    assert (tried.dry_run, tried.selected, tried.replayed, len(tried.samples)) == (True, 40, 40, 5)
    assert all('"EUR"' in sample["repaired"] for sample in tried.samples)
    assert committed(origin) == {}
    done = replay_topic(some, kafka.bootstrap, dead, repair=repair)
    assert (done.dry_run, done.selected, done.replayed, done.before) == (False, 40, 40, 0)
    seen = committed(origin)
    assert numbers(seen) == dict.fromkeys(range(0, 120, 3), 1)
    assert all(json.loads(value)["currency"] == "EUR" for value in seen)
    again = replay_topic(some, kafka.bootstrap, dead, repair=repair)
    assert (again.selected, again.replayed, again.before) == (0, 0, 40)
    rest = replay_topic(letters, kafka.bootstrap, dead)
    assert (rest.selected, rest.replayed, rest.guarded, rest.before) == (80, 79, 1, 40)
    assert numbers(committed(origin)) == {n: 1 for n in range(120) if n != 1}
    rows = spark.read.format("wheelsched-kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    row: Any = rows.option("subscribe", origin).load().where("key = cast('k6' as binary)").first()
    headers = tuple((pair.key, bytes(pair.value)) for pair in row.headers)
    state = read(headers)
    assert (state.id, state.attempt, state.replays, state.original_topic) == ("root-6", 0, 1, origin)
    assert dict(headers)["trace"] == b"\xff"
    broker.publish([letter(dead, origin, 500)])
    fresh = replay_topic(topic_letters(spark, kafka.bootstrap, dead), kafka.bootstrap, dead, max_replays=5)
    assert (fresh.selected, fresh.replayed, fresh.before) == (2, 2, 119)


def test_the_command_sorts_and_replays(
    spark: SparkSession,
    kafka: TemporaryKafka,
    topics: tuple[str, str],
    broker: KafkaBroker,
    name: str,
    committed: Callable[[str], Counter[str]],
) -> None:
    """The command counts letters, refuses a replay without a selection, and can send letters to the group's
    redelivery topic."""
    dead, origin = topics

    def run(*args: str, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, ["--kafka", kafka.bootstrap, "spark", "dlq", "--from", f"kafka:{dead}", *args])
        assert result.exit_code == code, result.output
        return result

    assert json.loads(run("--json").stdout)["letters"] == 120
    assert "--where, --group or --all" in run("--replay", code=2).output
    assert "--rate needs the store" in run("--replay", "--all", "--rate", "5", code=2).output
    assert f"there is no topic {name}.redelivery" in run("--replay", "--all", "--to", "group", "--yes", code=2).output
    broker.create_topic(f"{name}.redelivery")
    assert json.loads(run("--replay", "--all", "--dry-run", "--json", code=1).stdout)["replayed"] == 119
    assert json.loads(run("--replay", "--group", "bb", "--to", "group", "--yes", "--json").stdout)["replayed"] == 40
    assert sum(committed(f"{name}.redelivery").values()) == 40
    assert "40 dead letters sent by an earlier run" in run("--replay", "--group", "bb", "--yes").output
    assert committed(origin) == {}


def test_a_run_that_is_killed_is_finished_by_the_next(
    spark: SparkSession,
    kafka: TemporaryKafka,
    topics: tuple[str, str],
    committed: Callable[[str], Counter[str]],
    kill_session: Callable[[subprocess.Popen[bytes]], None],
    tmp_path: Path,
) -> None:
    """Driver, JVM and workers are killed when one Spark partition is written and half of another is produced.

    The next run partitions the letters differently. It sends the missing letters, and no letter twice.
    """
    dead, origin = topics
    reached = tmp_path / "reached"
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), kafka.bootstrap, dead, origin, str(reached)],
        start_new_session=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + 300
        while not reached.exists():
            assert process.poll() is None
            assert time.monotonic() < until_s, "the kill point was not reached"
            time.sleep(0.05)  # polls until the deadline
    finally:
        kill_session(process)
    letters = topic_letters(spark, kafka.bootstrap, dead)
    done = replay_topic(letters, kafka.bootstrap, dead)
    assert 0 < done.before < 119
    assert done.replayed == 119 - done.before
    assert numbers(committed(origin)) == {n: 1 for n in range(120) if n != 1}
    assert replay_topic(letters, kafka.bootstrap, dead).before == 119


def test_a_run_ends_the_one_before_it(
    kafka: TemporaryKafka, broker: KafkaBroker, topics: tuple[str, str], committed: Callable[[str], Counter[str]]
) -> None:
    """A new run fences a running task of the older run. A later task of the older run finds its run closed.

    Neither of these two tasks writes anything.
    """
    from retry_topic.spark.kafka.marks import MARKS, Part, mark_of, note_epoch
    from retry_topic.spark.kafka.runs import begin_run, is_last
    from retry_topic.spark.kafka.transaction import Transaction

    dead, origin = topics
    broker.topology.create([MARKS], partitions=1, settings={"cleanup.policy": "compact"})
    first = begin_run(broker, dead, 2)
    part = Part(f"job-{first}", 0, 1)
    zombie = Transaction(broker, part.name)
    assert not note_epoch(broker.groups, part, in_doubt=False)
    zombie.begin()
    zombie.add(Message(origin, b'{"n": 7}'))
    second = begin_run(broker, dead, 2)
    assert is_last(broker, dead, second)
    assert not is_last(broker, dead, first)
    with pytest.raises((BrokerError, Rejected)):
        zombie.commit([mark_of(part, 1)])
    Transaction(broker, part.name)
    assert note_epoch(broker.groups, part, in_doubt=False)
    assert committed(origin) == {}


def test_what_is_wrong_is_refused_before_anything_is_sent(
    spark: SparkSession, kafka: TemporaryKafka, broker: KafkaBroker, topics: tuple[str, str], name: str
) -> None:
    """Missing topics, letters of other topics and a wrong SQL expression in `repair` are errors. Records that are
    no dead letters are only counted."""
    dead, origin = topics
    with pytest.raises(ConfigError, match="there is no topic"):
        topic_letters(spark, kafka.bootstrap, f"{name}.gone")
    letters = topic_letters(spark, kafka.bootstrap, dead)
    with pytest.raises(ConfigError, match=f"there is no topic {name}-nowhere for 119 letters"):
        replay_topic(letters, kafka.bootstrap, dead, to=f"{name}-nowhere")
    with pytest.raises(ConfigError, match="the repair is wrong"):
        replay_topic(letters, kafka.bootstrap, dead, repair="replace(nothing, 'a', 'b')")
    with pytest.raises(ConfigError, match=f"120 letters are not from the present topic {origin}"):
        replay_topic(letters, kafka.bootstrap, origin)
    with pytest.raises(ConfigError, match="expected kafka to be"):
        topic_letters(spark, {}, dead)
    broker.create_topic(f"{name}-odd")
    broker.publish([Message(f"{name}-odd", b"no letter")])
    odd = topic_letters(spark, kafka.bootstrap, f"{name}-odd")
    assert replay_topic(odd, kafka.bootstrap, f"{name}-odd").unreadable == 1
    assert replay_topic(odd, kafka.bootstrap, f"{name}-odd", to=origin).replayed == 1
    assert sorted(topic for topic in broker.topics() if topic.startswith(name)) == sorted(
        [dead, origin, f"{name}-odd", f"{name}-odd.replayed"]
    )
