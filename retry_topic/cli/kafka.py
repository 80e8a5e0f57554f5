"""`wheel-sched kafka init | lag | replay | doctor`: commands on a group's topics on a Kafka cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from retry_topic.cli.group_topics import topics_options
from retry_topic.cli.replay import max_replays_option, show_guarded
from retry_topic.cli.settings import settings_of
from retry_topic.dead_letters.dead_topic import LetterToMessage, TopicReplay
from retry_topic.management.opening import kafka_broker, secrets_of
from retry_topic.message import Message
from retry_topic.message.topic_names import GroupTopics, intake_group_of
from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.config import Settings
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import ConfigError, NotDone, WheelSchedError
from wheel_sched.management.opening import created_as, opened, server_url
from wheel_sched.management.wording import amount

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

_IDLE_S = 5.0  # a replay ends when no record has come for this long

_groups = click.argument("groups", nargs=-1, metavar="GROUP...", required=True)


@click.group(name="kafka", help="Create, measure, replay and check topics on a Kafka cluster.")
def kafka() -> None:
    """Group of the commands about Kafka."""


@contextlib.contextmanager
def _opened(session: Session, **more: Any) -> Iterator[KafkaBroker]:
    broker = kafka_broker(settings_of(session), **more)
    try:
        yield broker
    finally:
        broker.close()


def _owned(topics: GroupTopics, groups: Iterable[str]) -> dict[str, dict[str, str]]:
    """The topics of each group, by purpose (such as "retry"). Raises `ConfigError` for impossible names."""
    from retry_topic.brokers.kafka.topology import check_topic

    owned = {group: topics.of(group) for group in groups}
    for own in owned.values():
        for topic in own.values():
            check_topic(topic)
    return owned


def _shards(settings: Settings) -> int:
    """The shard count of the namespace. If it cannot be read, the shard count of the settings."""
    try:
        with server_url(settings) as url:
            return int(created_as(url, settings.namespace).get("shards", settings.shards or 1))
    except WheelSchedError:
        return settings.shards or 1


def _topic_settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    wrong = [value for value, (name, equals, _) in zip(values, pairs, strict=True) if not (name.strip() and equals)]
    if wrong:
        raise click.BadParameter(f"expected NAME=VALUE, got: {wrong[0]!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


@kafka.command()
@_groups
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Number of partitions of each new topic.",
)
@click.option(
    "--replication",
    type=click.IntRange(-1, 1_000),
    default=-1,
    help="Copies of each new topic (default: -1, the cluster's default).",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    callback=_topic_settings,
    metavar="NAME=VALUE",
    help="Setting of each new topic; it overrides ours; repeatable.",
)
@topics_options
@dry_run_option
@json_option
@pass_session
def init(
    session: Session,
    groups: tuple[str, ...],
    partitions: int,
    replication: int,
    settings: dict[str, str],
    topics: GroupTopics,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create the missing topics of GROUPs: retry, redelivery, dead. Also create the claims topic of the namespace.

    There is no topic per delay: a message waits in the delay store. Existing topics stay as they are. New topics of a
    group keep records for 7 days and dead letters for 30, take records of up to 8 MiB, and are never compacted. The
    claims topic stays empty: its committed offsets tell which batches of due messages were sent.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka init orders billing --partitions 6 --replication 3
      wheel-sched --kafka broker:9092 kafka init orders --setting retention.ms=1209600000 --dry-run
      wheel-sched --kafka broker:9092 kafka init orders --retry-topic orders-retry
    """
    if replication == 0:
        raise click.BadParameter(
            "expected at least 1 copy, or -1 for the cluster's default", param_hint="--replication"
        )
    with _opened(session, partitions=partitions, replication=replication, topic_settings=settings) as broker:
        from retry_topic.brokers.kafka.transactions import claims_topic

        owned = _owned(topics, groups)
        claims = claims_topic(settings_of(session).namespace)
        names = [*(topic for own in owned.values() for topic in own.values()), claims]
        there = {topic: broker.topology.partitions(topic) for topic in names}
        shards = _shards(settings_of(session))
        if not dry_run:
            for own in owned.values():
                broker.create_group_topics(own)
            if not there[claims]:
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
@topics_options
@json_option
@pass_session
def lag(session: Session, groups: tuple[str, ...], topics: GroupTopics, as_json: bool) -> None:
    """Show how far GROUPs are behind: failed messages that no service has read, and messages not handled yet.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka lag orders
    """
    rows = []
    with _opened(session) as broker:
        from confluent_kafka import TopicPartition

        owned = _owned(topics, groups)
        everywhere = broker.topology.places()
        for group, own in owned.items():
            for reader, always in ((intake_group_of(group), own["retry"]), (group, own["redelivery"])):
                committed = broker.groups.committed(reader, everywhere)
                places = [
                    TopicPartition(topic, number)
                    for topic in sorted({always, *(topic for topic, _ in committed)})
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
        for group, own in owned.items():
            taken = [row for row in rows if row[0] == intake_group_of(group) and row[1] == own["retry"]]
            waiting = sum(behind for *_, behind in taken)
            if waiting and all(at is None for _, _, _, at, _, _ in taken):
                there = "1 retry waits" if waiting == 1 else f"{waiting:,} retries wait"
                note(
                    f"{there} in {own['retry']}, and no service of {group} has ever read them: start "
                    f"`wheel-sched --kafka ... serve {group}`"
                )


@kafka.command()
@click.argument("group")
@click.option("--to", "target", metavar="TOPIC", help="Deliver to TOPIC (default: the group's redelivery topic).")
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True, help="Replay at most N.")
@max_replays_option
@topics_options
@dry_run_option
@yes_option
@json_option
@pass_session
def replay(
    session: Session,
    group: str,
    target: str | None,
    limit: int,
    max_replays: int,
    topics: GroupTopics,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Deliver the records of GROUP's dead topic again, each record once however often the command runs.

    `wheel-sched replay` selects letters of the store by error and age. This command reads the topic itself, from where
    the last replay ended to the topic's present end. Attempts start anew. The store of the group's service counts the
    replays of each message, and messages that were replayed too often are skipped. A group that signs its headers
    needs --secrets, because the messages are signed again.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka replay orders --dry-run
      wheel-sched --kafka broker:9092 kafka replay orders --to orders.repaired --yes
    """
    secrets = secrets_of(settings_of(session))
    with _opened(session) as broker:
        from confluent_kafka import TopicPartition

        own = _owned(topics, [group])[group]
        dead, to, reader = own["dead"], target or own["redelivery"], f"{group}.replay"
        for topic in (dead, to):
            if not broker.topology.partitions(topic):
                raise NotDone(f"there is no topic {topic!r}: nothing was replayed; see `wheel-sched kafka init`")
        places = [TopicPartition(dead, number) for number in range(broker.topology.partitions(dead))]
        committed = broker.groups.committed(reader, places)
        last, first = broker.topology.ends(places), broker.topology.ends(places, earliest=True)
        waiting = sum(end - max(first[where], committed.get(where, 0)) for where, end in last.items())
        if dry_run:
            emit({"dry_run": True, "waiting": waiting}) if as_json else say(f"up to {waiting:,} wait in {dead}")
            note("nothing was changed")
            return OK
        if waiting:
            confirm(f"Replay up to {amount(min(waiting, limit), 'dead letter')} to {to}?", yes)
        with opened(settings_of(session)) as store:
            done = TopicReplay(LetterToMessage(group, own, to, broker.topic_id(dead), secrets), store, max_replays)
            consumer = broker.consumer([dead], reader)
            left, idle_until_s = min(waiting, limit), time.monotonic() + 6 * _IDLE_S
            while left > 0 and time.monotonic() < idle_until_s:
                # a letter that died again during this replay waits for the next one
                letters = [one for one in consumer.poll(min(200, left), 500) if _is_before(last, one.message)]
                if letters:
                    try:
                        failures = done.send(consumer, letters)
                    except ConfigError as error:
                        raise ConfigError(f"{error}; {amount(done.replayed, 'dead letter')} replayed before") from error
                    for reason in failures:
                        note(f"not replayed: {reason}")
                    left -= len(letters)
                    idle_until_s = time.monotonic() + _IDLE_S
            consumer.close()
    if as_json:
        emit({"replayed": done.replayed, "guarded": done.guarded})
    else:
        say(f"{amount(done.replayed, 'dead letter')} replayed to {to}")
        show_guarded(done.guarded)
    if done.guarded:
        note("this command now skips these letters; `wheel-sched replay` has them as long as the store keeps them")
    return FAILED if done.failed or done.guarded else OK


def _is_before(ends: Mapping[tuple[str, int], int], letter: Message) -> bool:
    source = letter.source
    return source is not None and int(source.offset) < ends[source.topic, source.partition]


@kafka.command()
@_groups
@click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    default=DispatcherConfig().lease_ms,
    metavar="DURATION",
    help="Lease of your services' dispatchers (default: 10s).",
)
@topics_options
@json_option
@pass_session
def doctor(session: Session, groups: tuple[str, ...], lease_ms: int, topics: GroupTopics, as_json: bool) -> int:
    """Check what guarantees over Kafka depend on: topics, copies, rights, time-outs, retention, claims in doubt.

    \b
    Examples:
      wheel-sched --kafka broker:9092 kafka doctor orders
    """
    from wheel_sched.cli.doctor import say_finding

    with _opened(session) as broker:
        from retry_topic.management.kafka_checks import CheckedGroups, findings

        checked = CheckedGroups(_owned(topics, groups), settings_of(session), _shards(settings_of(session)), lease_ms)
        found = list(findings(broker, checked))
    if as_json:
        emit({"healthy": all(one.level != "problem" for one in found), "findings": [asdict(one) for one in found]})
    else:
        for finding in found:
            say_finding(finding)
    return FAILED if any(one.level == "problem" for one in found) else OK
