"""`wheel-sched spark dlq`: dead letters of a store, of a Kafka topic or of an archive, in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retry_topic.spark.opening import TOPIC, cluster_of, master_option, running, with_store
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, emit, instant, one_line, say, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from retry_topic.spark.jobs.dlq import Replay


@click.command()
@click.option("--where", metavar="SQL", help="Which letters, e.g. \"topic = 'orders' and attempt > 3\".")
@click.option("--group", metavar="FINGERPRINT", help="The letters of one group; its start is enough.")
@click.option("--replay", "replaying", is_flag=True, help="Let them be tried again; without it they are only sorted.")
@click.option("--all", "everything", is_flag=True, help="With --replay: all of them.")
@click.option("--repair", metavar="SQL", help="The new payload, e.g. \"replace(text, 'EURO', 'EUR')\".")
@click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), metavar="N", help="So many a second.")
@click.option(
    "--max-replays", type=click.IntRange(min=1), default=3, show_default=True, help="Loop guard, per message."
)
@click.option(
    "--from", "archive", metavar="PATH", help="Instead of the store: kafka:TOPIC, or an archive (Parquet, JSON Lines)."
)
@click.option("--to", metavar="TOPIC", help="Of kafka:TOPIC: origin (default), group, or a topic to send letters to.")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="TOPIC",
    help="Of kafka:TOPIC: a topic that letters may go to, beside those that the group reads.",
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
    """Dead letters in bulk: sort them by error, select by SQL, repair, replay.

    \b
    Examples:
      wheel-sched spark dlq
      wheel-sched spark dlq --group 3f2a --replay --dry-run
      wheel-sched spark dlq --where "status = 503" --replay --rate 200 --yes
      wheel-sched --kafka broker:9092 spark dlq --from kafka:orders.dead --all --replay --dry-run
    """
    from retry_topic.spark.jobs import dead_letters, replay_topic, topic_letters, triage
    from retry_topic.spark.jobs import replay as replay_letters
    from retry_topic.spark.jobs.dlq import select
    from retry_topic.spark.jobs.history import load_table

    topic = archive.removeprefix(TOPIC) if archive and archive.startswith(TOPIC) else None
    if replaying and archive and topic is None:
        raise click.UsageError("An archive is sorted only; what lies in the store or in a topic is replayed.")
    if replaying and not (where or group or everything):
        raise click.UsageError("Which dead letters? Give --where, --group or --all.")
    if not replaying and (repair or rate):
        raise click.UsageError("--repair and --rate go with --replay.")
    if to and not (replaying and topic):
        raise click.UsageError(
            "--to goes with --replay and --from kafka:TOPIC; letters of a store go where they were to."
        )
    if rate and topic:
        raise click.UsageError("--rate goes through the store: replay the letters that the store has (without --from).")
    if topic is not None:
        cluster = cluster_of(session)
        with running(master) as alone:
            chosen = select(topic_letters(alone, cluster, topic), where, group)
            if not replaying:
                _tell_groups(triage(chosen), as_json)
                return 0
            if not dry_run:
                confirm(f"Send {amount(chosen.count(), 'dead letter')} of {topic} off, less those sent before?", yes)
            done = replay_topic(
                chosen,
                cluster,
                topic,
                to=to or "origin",
                origins=origins,
                repair=repair,
                max_replays=max_replays,
                dry_run=dry_run,
            )
        return _tell_replay(done, as_json)
    if archive:
        with running(master) as alone:
            _tell_groups(triage(select(load_table(alone, archive), where, group)), as_json)
        return 0
    with with_store(session, master) as bench:
        chosen = select(dead_letters(bench.spark, bench.place), where, group)
        if not replaying:
            _tell_groups(triage(chosen), as_json)
            return 0
        if not dry_run:
            confirm(f"Replay {amount(chosen.count(), 'dead letter')}?", yes)
        done = replay_letters(chosen, bench.place, repair=repair, rate=rate, max_replays=max_replays, dry_run=dry_run)
    return _tell_replay(done, as_json)


def _tell_replay(done: Replay, as_json: bool) -> int:
    if as_json:
        emit(done.as_dict())
    else:
        what = "would replay" if done.dry_run else "replayed"
        say(f"{what} {amount(done.replayed, 'dead letter')} of {done.selected:,}")
        for count, why in (
            (done.guarded, "held back by the loop guard"),
            (done.unreadable, "cannot be read"),
            (done.gone, "gone meanwhile"),
            (done.before, "sent by an earlier run"),
        ):
            if count:
                say(f"{amount(count, 'dead letter')} {why}")
        for sample in done.samples:
            say("  " + "  ".join(one_line(str(value), 60) for value in sample.values()))
    return 0 if done.replayed == done.selected else 1


def _tell_groups(groups: DataFrame, as_json: bool) -> None:
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
