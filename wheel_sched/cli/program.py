"""The root of the command line: global options and the table of commands.

Commands of other packages are named by text alone, so no import runs from wheel_sched to them.
"""

from __future__ import annotations

import click

from wheel_sched.cli.lazy import Lazy, RootGroup
from wheel_sched.cli.options import Session

COMMANDS = {
    "demo": Lazy("retry_topic.cli.demo:demo", "See it work: an embedded server, failing messages, retries.", "demo"),
    "doctor": Lazy("wheel_sched.cli.doctor:doctor", "Check everything that a promise depends on."),
    "serve": Lazy("retry_topic.cli.serve:serve", "Run the retry service of consumer groups."),
    "publish": Lazy("retry_topic.cli.publish:publish", "Publish messages, now or later."),
    "stats": Lazy("wheel_sched.cli.stats:stats", "How many wait, are in flight, held and dead."),
    "topics": Lazy("retry_topic.cli.topics:topics", "Topics, what they hold and what waits for them."),
    "ls": Lazy("retry_topic.cli.listing:ls", "List messages in order of due; dead letters by fingerprint."),
    "show": Lazy("retry_topic.cli.show:show", "The whole story of one message."),
    "keys": Lazy("retry_topic.cli.keys:keys", "Ordering keys that wait for a failed message; open one by hand."),
    "retry": Lazy("retry_topic.cli.changing:retry", "Try messages now instead of when they are due."),
    "reschedule": Lazy("retry_topic.cli.changing:reschedule", "Give messages another due."),
    "delete": Lazy("retry_topic.cli.changing:delete", "Delete messages for good."),
    "replay": Lazy("retry_topic.cli.replay:replay", "Send dead letters through again."),
    "pause": Lazy("retry_topic.cli.topics:pause", "Hold everything of a topic."),
    "resume": Lazy("retry_topic.cli.topics:resume", "Let a paused topic go on."),
    "backup": Lazy("wheel_sched.cli.maintenance:backup", "Write a namespace to a file."),
    "restore": Lazy("wheel_sched.cli.maintenance:restore", "Put a backup into an empty namespace."),
    "reshard": Lazy("wheel_sched.cli.maintenance:reshard", "Give a namespace another number of shards, offline."),
    "history": Lazy("retry_topic.cli.history:history", "What became of each attempt of messages that failed."),
    "policy": Lazy("retry_topic.cli.policy:policy", "Explain and simulate retry policies."),
    "kafka": Lazy("retry_topic.cli.kafka:kafka", "Topics, lag, replay and a check-up on a Kafka cluster.", "kafka"),
    "aps": Lazy("wheel_sched_apscheduler.cli:aps", "APScheduler jobs in a shared store.", "apscheduler"),
    "spark": Lazy("retry_topic.spark.cli:spark", "Jobs on Spark: dead letters, history, the store in bulk.", "spark"),
    "config": Lazy("wheel_sched.cli.settings:config", "Show the settings and where they are from."),
}

HELP = """Delayed, durable messages, released to the millisecond.

\b
Examples:
  wheel-sched demo                                  see it work
  wheel-sched publish orders '{"id": 1}' --delay 5m
  wheel-sched ls --topic orders                     what waits, in order of due
  wheel-sched ls --dead --group                     what failed, by kind of error
  wheel-sched replay --fingerprint 3f2a --dry-run   what a replay would do
  wheel-sched doctor                                is all well?

Settings: flag, then WHEEL_SCHED_*, then wheel-sched.toml, then default. Exit codes: 0 done, 1 failed or problems
found, 2 wrong usage, 69 store or broker unreachable, 130 interrupted.
"""


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"wheel-sched {version('wheel-sched')}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    lazy=COMMANDS,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    name="wheel-sched",
)
@click.option("--store", metavar="URL", help="redis://, rediss://, unix:// or embedded:FOLDER.")
@click.option("--namespace", metavar="NAME", help="Prefix of all keys (default: wheel).")
@click.option("--shards", type=int, metavar="N", help="Of a namespace to be created (default: 1).")
@click.option("--durability", metavar="LEVEL", help="memory, everysec, fsync or replicated.")
@click.option("--kafka", metavar="HOST:PORT", help="Kafka cluster, or FILE.properties; its topics instead of streams.")
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"]),
    help="Of Kafka's groups; consumer is KIP-848 (default: classic, or what FILE.properties says).",
)
@click.option(
    "--transactions/--no-transactions",
    default=None,
    help="Without Kafka's transactions what is due goes out at least once; retry-id and retry-attempt tell repeats.",
)
@click.option("--secrets", metavar="FILE", help="Secrets that headers are signed with, one a line; the first signs.")
@click.option("--config", "file", metavar="FILE", help="Settings file (default: ./wheel-sched.toml).")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def cli(
    ctx: click.Context,
    store: str | None,
    namespace: str | None,
    shards: int | None,
    durability: str | None,
    kafka: str | None,
    group_protocol: str | None,
    transactions: bool | None,
    secrets: str | None,
    file: str | None,
) -> None:
    flags = {
        "store": store,
        "namespace": namespace,
        "shards": shards,
        "durability": durability,
        "kafka": kafka,
        "group_protocol": group_protocol,
        "transactions": transactions,
        "secrets": secrets,
    }
    ctx.obj = Session(flags, file)
