"""`wheel-sched spark intake`: stores the failed messages of a group's Kafka retry topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retry_topic.cli.group_topics import topics_options
from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import cluster_of, policies_of
from retry_topic.message.topic_names import GroupTopics
from retry_topic.spark.opening import master_option, with_store
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, dry_run_option, json_option, pass_session
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.wording import amount

if TYPE_CHECKING:
    from retry_topic.spark.jobs.intake import IntakeReport


@click.command()
@click.argument("group")
@click.option("--policies", metavar="FILE", help="Retry policies (default: those of the settings).")
@click.option("--redelivery", type=click.Choice(["group", "origin"]), default="group", show_default=True)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="TOPIC",
    help="With --redelivery origin: the only topics that get due messages (default: those the group reads).",
)
@click.option("--headers", type=click.Choice(["own", "spring"]), default="own", show_default=True)
@click.option(
    "--history", type=click.IntRange(min=0), default=0, metavar="N", help="Keep about N attempts in the history."
)
@click.option(
    "--every",
    "every_ms",
    type=DURATION,
    metavar="DURATION",
    help="Start a batch this often until Ctrl-C (default: one run).",
)
@click.option("--most", type=click.IntRange(min=1), metavar="N", help="Read about N offsets in one batch.")
@click.option("--connector", type=click.Choice(["auto", "jvm", "python"]), default="auto", show_default=True)
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="Checkpoint folder of the Spark query; without it the run begins at the position in the store.",
)
@topics_options
@master_option
@dry_run_option
@json_option
@pass_session
def intake(
    session: Session,
    group: str,
    policies: str | None,
    redelivery: str,
    origins: tuple[str, ...],
    headers: str,
    history: int,
    every_ms: int | None,
    most: int | None,
    connector: str,
    checkpoint: str | None,
    topics: GroupTopics,
    master: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Store the failed messages of GROUP's retry topic, each record once.

    Services of the group may run at the same time; they publish the due messages. Use the same policies, redelivery and
    topics as these services.

    \b
    Examples:
      wheel-sched --kafka broker:9092 --store redis://store:6379 spark intake orders --dry-run
      wheel-sched --kafka broker:9092 --store redis://store:6379 spark intake orders --every 10s
    """
    from retry_topic.spark.jobs import intake as run

    cluster = cluster_of(settings_of(session))
    policy_set = policies_of(settings_of(session), policies)
    with with_store(session, master) as job:
        done = run(
            job.spark,
            job.place,
            cluster,
            group,
            policy_set,
            redelivery="origin" if redelivery == "origin" else "group",
            origins=origins,
            headers="spring" if headers == "spring" else "own",
            history=history,
            group_topics=topics,
            connector="jvm" if connector == "jvm" else "python" if connector == "python" else "auto",
            most=most,
            checkpoint=checkpoint,
            every_s=None if every_ms is None else every_ms / 1000,
            seen=lambda report: note(f"{report.records:,} records read, {report.lag:,} to go"),
            dry_run=dry_run,
        )
    _print(done, as_json)


def _print(done: IntakeReport, as_json: bool) -> None:
    if as_json:
        emit(done.as_dict())
        return
    if done.dry_run:
        say(f"up to {amount(done.lag, 'record')} would be read")
    else:
        say(
            f"{amount(done.records, 'record')} read: {done.waiting:,} wait, {done.dead:,} are dead, "
            f"{done.repeated:,} were known before"
        )
    table(
        ("partition", "position", "end", "lag"),
        [
            (
                str(part.partition),
                "-" if part.position is None else f"{part.position:,}",
                f"{part.end:,}",
                f"{part.lag:,}",
            )
            for part in done.partitions
        ],
        right=(0, 1, 2, 3),
    )
