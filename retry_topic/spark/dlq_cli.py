"""`wheel-sched spark dlq`: groups and replays many dead letters of a store, a Kafka topic or an archive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import cluster_of
from retry_topic.spark.opening import TOPIC, master_option, running, with_store
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, say, table
from wheel_sched.management.wording import amount, instant, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from retry_topic.spark.jobs.dlq import Replay


@click.command()
@click.option("--where", metavar="SQL", help="Select letters, e.g. \"topic = 'orders' and attempt > 3\".")
@click.option("--group", metavar="FINGERPRINT", help="Select one group; the start of its fingerprint is enough.")
@click.option("--replay", "replaying", is_flag=True, help="Try the letters again; without it they are only grouped.")
@click.option("--all", "everything", is_flag=True, help="With --replay: all letters.")
@click.option("--repair", metavar="SQL", help="New payload, e.g. \"replace(text, 'EURO', 'EUR')\".")
@click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), metavar="N", help="Replay about N a second.")
@click.option(
    "--max-replays",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Replay one message at most this often.",
)
@click.option(
    "--from",
    "archive",
    metavar="PATH",
    help="Read kafka:TOPIC or an archive (Parquet, JSON Lines) instead of the store.",
)
@click.option(
    "--to", metavar="TOPIC", help="With kafka:TOPIC: send letters to origin (default), group, or a named topic."
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="TOPIC",
    help="With kafka:TOPIC: allow this topic too; letters may go to the topics that the group reads.",
)
@master_option
@dry_run_option
@yes_option
@json_option
@pass_session
def dlq(
    session: Session,
    where: str | None,
    group: str | None,
    replaying: bool,
    everything: bool,
    repair: str | None,
    rate: float | None,
    max_replays: int,
    archive: str | None,
    to: str | None,
    origins: tuple[str, ...],
    master: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Group many dead letters by error, select them by SQL, repair and replay them.

    \b
    Examples:
      wheel-sched spark dlq
      wheel-sched spark dlq --group 3f2a --replay --dry-run
      wheel-sched spark dlq --where "status = 503" --replay --rate 200 --yes
      wheel-sched --kafka broker:9092 spark dlq --from kafka:orders.dead --all --replay --dry-run
    """
    from retry_topic.spark.jobs import replay, replay_topic, triage
    from retry_topic.spark.jobs.dlq import select

    topic = archive.removeprefix(TOPIC) if archive and archive.startswith(TOPIC) else None
    if replaying:
        _check_replay(archive, topic, bool(where or group or everything), bool(rate))
    elif repair or rate:
        raise click.UsageError("--repair and --rate go with --replay.")
    if to and not (replaying and topic):
        raise click.UsageError("--to goes with --replay and --from kafka:TOPIC; the store knows where its letters go.")
    with _letters(session, master, archive, topic) as (letters, place):
        chosen = select(letters, where, group)
        if not replaying:
            _print_groups(triage(chosen), as_json)
            return 0
        if not dry_run:
            what = amount(chosen.count(), "dead letter")
            confirm(f"Send {what} of {topic}, except those sent before?" if topic else f"Replay {what}?", yes)
        if topic is None:
            done = replay(chosen, place, repair=repair, rate=rate, max_replays=max_replays, dry_run=dry_run)
        else:
            done = replay_topic(
                chosen,
                cluster_of(settings_of(session)),
                topic,
                to=to or "origin",
                origins=origins,
                repair=repair,
                max_replays=max_replays,
                dry_run=dry_run,
            )
    return _print_replay(done, as_json)


def _check_replay(archive: str | None, topic: str | None, selected: bool, limited: bool) -> None:
    """Raise `click.UsageError` if other options forbid --replay, or if an option that --replay needs is missing."""
    if archive and topic is None:
        raise click.UsageError("An archive cannot be replayed; only letters of the store or of a topic can.")
    if not selected:
        raise click.UsageError("Which dead letters? Give --where, --group or --all.")
    if limited and topic:
        raise click.UsageError("--rate needs the store: replay the letters of the store (without --from).")


@contextlib.contextmanager
def _letters(session: Session, master: str | None, archive: str | None, topic: str | None) -> Iterator[Any]:
    """Yield a pair: dead letters, and the place of the store that holds them.

    The letters come from the store, an archive or a topic. The place is None for letters of an archive or a topic.
    """
    from retry_topic.spark.jobs import dead_letters, topic_letters
    from retry_topic.spark.jobs.history import load_table

    if archive is None:
        with with_store(session, master) as job:
            yield dead_letters(job.spark, job.place), job.place
        return
    cluster = None if topic is None else cluster_of(settings_of(session))
    with running(master) as spark:
        if topic is None or cluster is None:
            yield load_table(spark, archive), None
        else:
            yield topic_letters(spark, cluster, topic), None


def _print_replay(done: Replay, as_json: bool) -> int:
    if as_json:
        emit(done.as_dict())
    else:
        what = "would replay" if done.dry_run else "replayed"
        say(f"{what} {amount(done.replayed, 'dead letter')} of {done.selected:,}")
        for count, why in (
            (done.guarded, "held back by the loop guard"),
            (done.unreadable, "unreadable"),
            (done.gone, "replayed or deleted by others meanwhile"),
            (done.before, "sent by an earlier run"),
        ):
            if count:
                say(f"{amount(count, 'dead letter')} {why}")
        for sample in done.samples:
            say("  " + "  ".join(one_line(str(value), 60) for value in sample.values()))
    return 0 if done.replayed == done.selected else 1


def _print_groups(groups: DataFrame, as_json: bool) -> None:
    rows = [row.asDict() for row in groups.limit(1_000).collect()]
    if as_json:
        emit({"groups": rows, "letters": sum(row["letters"] for row in rows)})
        return
    table(
        ("letters", "fingerprint", "topic", "error", "last", "sample"),
        [
            (
                f"{row['letters']:,}",
                row["fingerprint"] or "-",
                row["topic"] or "-",
                row["error_class"] or "-",
                instant(row["last_ms"])[:19],
                one_line(row["sample"] or "", 60),
            )
            for row in rows
        ],
        right=(0,),
    )
