"""`wheel-sched kafka init | lag | replay | doctor`: a group's topics on a Kafka cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from retry_topic.cli.opening import kafka_broker
from retry_topic.names import dead_topic_of, intake_group_of, redelivery_topic_of, retry_topic_of
from wheel_sched.cli.opening import created_as, server_url
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, emit, note, say, table
from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError, WheelSchedError

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

_DAY_MS = 86_400_000
_KEEP_MS = {"retry": 7 * _DAY_MS, "redelivery": 7 * _DAY_MS, "dead": 30 * _DAY_MS}
_IDLE_S = 5.0  # nothing more came for so long: a replay is through

_groups = click.argument("groups", nargs=-1, metavar="GROUP...", required=True)


@click.group(name="kafka", help="Topics, lag, replay and a check-up on a Kafka cluster.")
def kafka() -> None:
    """Group of the commands about Kafka."""


@contextlib.contextmanager
def _opened(session: Session, **more: int) -> Iterator[KafkaBroker]:
    servers = session.settings.kafka
    if servers is None:
        raise ConfigError("which cluster? Give --kafka HOST:PORT, WHEEL_SCHED_KAFKA or kafka = in wheel-sched.toml")
    broker = kafka_broker(servers, **more)
    try:
        yield broker
    finally:
        broker.close()


def _topics_of(group: str) -> dict[str, str]:
    return {"retry": retry_topic_of(group), "redelivery": redelivery_topic_of(group), "dead": dead_topic_of(group)}


def _shards(settings: Settings) -> int:
    """How many shards the namespace has; those to be created with where it does not exist or cannot be asked."""
    try:
        with server_url(settings) as url:
            return int(created_as(url, settings.namespace).get("shards", settings.shards or 1))
    except WheelSchedError:
        return settings.shards or 1


@kafka.command()
@_groups
@click.option("--partitions", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Of each topic.")
@click.option("--replication", type=int, default=-1, help="Copies of each topic (default: as the cluster has it).")
@dry_run_option
@json_option
@pass_session
def init(
    session: Session, groups: tuple[str, ...], partitions: int, replication: int, dry_run: bool, as_json: bool
) -> None:
    """Create the topics of GROUPs that are absent: retry, redelivery, dead, and one for the claims of the namespace.

    No topic per delay: whatever the delay, a message waits in the delay store. What exists is left as it is.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka init orders billing --partitions 6 --replication 3
    """
    from retry_topic.brokers.kafka.sender import claims_topic

    with _opened(session, partitions=partitions, replication=replication) as broker:
        wanted = {topic: kind for group in groups for kind, topic in _topics_of(group).items()}
        claims = claims_topic(session.settings.namespace)
        shards = _shards(session.settings)
        there = {topic: broker.topology.partitions(topic) for topic in (*wanted, claims)}
        for topic, kind in wanted.items():
            if not dry_run and not there[topic]:
                broker.topology.create([topic], settings={"retention.ms": str(_KEEP_MS[kind])})
        if not dry_run and not there[claims]:
            broker.topology.create([claims], partitions=shards, settings={"cleanup.policy": "compact"})
    for topic, count in there.items():
        planned = count or (shards if topic == claims else partitions)
        if as_json:
            emit({"topic": topic, "partitions": planned, "created": not count and not dry_run, "existed": bool(count)})
        elif count:
            say(f"{topic}  exists with {amount(count, 'partition')}")
        else:
            say(f"{topic}  {'would be' if dry_run else 'was'} created with {amount(planned, 'partition')}")


@kafka.command()
@_groups
@json_option
@pass_session
def lag(session: Session, groups: tuple[str, ...], as_json: bool) -> None:
    """How far GROUPs are behind: failed messages not taken in yet, and messages not handled yet.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka lag orders
    """
    from confluent_kafka import TopicPartition

    rows = []
    with _opened(session) as broker:
        everywhere = broker.topology.places()
        for group in groups:
            for reader, only in ((intake_group_of(group), {retry_topic_of(group)}), (group, None)):
                committed = broker.groups.committed(reader, everywhere)
                topics = {topic for topic, _ in committed} | (only or {redelivery_topic_of(group)})
                places = [
                    TopicPartition(topic, number)
                    for topic in sorted(topics)
                    for number in range(broker.topology.partitions(topic))
                ]
                last, first = broker.topology.ends(places), broker.topology.ends(places, earliest=True)
                for place in places:
                    where = place.topic, place.partition
                    at = committed.get(where)
                    behind = last[where] - (first[where] if at is None else max(at, first[where]))
                    rows.append((reader, *where, at, last[where], behind))
    for reader, topic, partition, at, end, behind in rows:
        if as_json:
            emit({"group": reader, "topic": topic, "partition": partition, "committed": at, "end": end, "lag": behind})
    if not as_json:
        cells = [
            (reader, topic, str(partition), "-" if at is None else f"{at:,}", f"{end:,}", f"{behind:,}")
            for reader, topic, partition, at, end, behind in rows
        ]
        table(("group", "topic", "partition", "committed", "end", "lag"), cells, right=(2, 3, 4, 5))


@kafka.command()
@click.argument("group")
@click.option("--to", "target", metavar="TOPIC", help="Where to (default: the group's redelivery topic).")
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True, help="At most so many.")
@dry_run_option
@yes_option
@json_option
@pass_session
def replay(
    session: Session, group: str, target: str | None, limit: int, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Send what lies in GROUP's dead topic through again, each record once however often this is run.

    For letters that the store still has, `wheel-sched replay` chooses by error and age; this reads the topic itself,
    from where the last replay ended. Their attempts start anew.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka replay orders --dry-run
      wheel-sched --kafka broker:9092 kafka replay orders --to orders.repaired --yes
    """
    from confluent_kafka import TopicPartition

    from retry_topic.headers import RetryState, read, write

    dead, to, reader = dead_topic_of(group), target or redelivery_topic_of(group), f"{group}.replay"
    with _opened(session) as broker:
        for topic in (dead, to):
            if not broker.topology.partitions(topic):
                raise ConfigError(f"there is no topic {topic!r}: nothing was replayed; see `wheel-sched kafka init`")
        places = [TopicPartition(dead, number) for number in range(broker.topology.partitions(dead))]
        committed = broker.groups.committed(reader, places)
        last, first = broker.topology.ends(places), broker.topology.ends(places, earliest=True)
        waiting = sum(end - max(first[where], committed.get(where, 0)) for where, end in last.items())
        if dry_run:
            emit({"dry_run": True, "waiting": waiting}) if as_json else say(f"up to {waiting:,} wait in {dead}")
            note("nothing was changed")
            return
        if waiting:
            confirm(f"Replay up to {amount(min(waiting, limit), 'dead letter')} to {to}?", yes)
        done = 0
        consumer = broker.consumer([dead], reader)
        idle_until_s = time.monotonic() + 6 * _IDLE_S
        while waiting and done < limit and time.monotonic() < idle_until_s:
            deliveries = consumer.poll(min(200, limit - done), 500)
            pairs = []
            for delivery in deliveries:
                # an id of its own again, or it would be taken for the message that died
                origin = read(delivery.message.headers).original_topic
                headers = write(delivery.message.headers, RetryState(original_topic=origin, consumer_group=group))
                pairs.append((delivery, delivery.message.to(to, headers)))
            if pairs:
                failures = [failure for failure in consumer.forward(pairs) if failure is not None]
                for failure in failures:
                    note(f"not replayed: {failure.reason}")
                done += len(pairs) - len(failures)
                idle_until_s = time.monotonic() + _IDLE_S
        consumer.close()
    emit({"replayed": done}) if as_json else say(f"{amount(done, 'dead letter')} replayed to {to}")


@kafka.command()
@_groups
@json_option
@pass_session
def doctor(session: Session, groups: tuple[str, ...], as_json: bool) -> int:
    """Check what the promises over Kafka depend on: topics, rights, time-outs, retention, transactions.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka doctor orders
    """
    from retry_topic.cli.kafka_checks import findings
    from wheel_sched.cli.doctor import say_finding

    with _opened(session) as broker:
        found = list(findings(broker, groups, session.settings.namespace, _shards(session.settings)))
    if as_json:
        emit({"healthy": all(one.level != "problem" for one in found), "findings": [asdict(one) for one in found]})
    else:
        for finding in found:
            say_finding(finding)
    return 1 if any(one.level == "problem" for one in found) else 0
