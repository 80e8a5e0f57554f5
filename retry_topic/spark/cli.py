"""`wheel-sched spark JOB`: the jobs on the command line, or under spark-submit.

Each command starts a Spark session for its job and stops it afterwards. `--master` names the Spark master. If a session
is already running, the command uses it and leaves it running. Spark's log goes to stderr, errors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import policies_of
from retry_topic.spark.dlq_cli import dlq
from retry_topic.spark.intake_cli import intake
from retry_topic.spark.opening import attempts, master_option, running, with_store
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import (
    Session,
    confirm,
    dry_run_option,
    force_option,
    json_option,
    may_replace,
    pass_session,
    yes_option,
)
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.errors import ConfigError, NotDone
from wheel_sched.management.wording import amount, instant, span
from wheel_sched.store.maintenance.whole_file import whole_file

if TYPE_CHECKING:
    from retry_topic.spark.jobs.backtest import Verdict


@click.group(name="spark", help="Jobs on Spark: dead letters, the attempt history and the store in bulk.")
def spark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError('the jobs need Spark: pip install "wheel-sched[spark]"; nothing was started')


spark.add_command(dlq)
spark.add_command(intake)


@spark.command()
@click.argument("history", required=False)
@click.option("--policies", metavar="FILE", help="Today's policies (default: those of the settings).")
@click.option("--out", metavar="FILE", help="Write the proposal as a policy file.")
@force_option
@click.option(
    "--groups",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="At most this many pairs of topic and error class.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the search; equal seeds give equal proposals."
)
@master_option
@dry_run_option
@json_option
@pass_session
def backtest(
    session: Session,
    history: str | None,
    policies: str | None,
    out: str | None,
    force: bool,
    groups: int,
    seed: int,
    master: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Score today's retry policies and propose better ones, from HISTORY (Parquet or JSON Lines of attempts, or
    kafka:TOPIC).

    Without HISTORY the command reads the history in the store.

    \b
    Examples:
      wheel-sched spark backtest attempts.parquet
      wheel-sched --kafka broker:9092 spark backtest kafka:attempts
      wheel-sched spark backtest attempts.jsonl --policies retry.toml --out proposed.toml
    """
    replace = out is not None and not dry_run and may_replace(out, force)
    from retry_topic.policy.dumping import dump_policies
    from retry_topic.spark.jobs import backtest as run

    today = policies_of(settings_of(session), policies)
    with attempts(session, master, history) as rows_of:
        found = run(rows_of, today, groups=groups, seed=seed)
    if out is not None and not dry_run:
        with whole_file(Path(out), replace=replace) as part:
            part.write_text(dump_policies(found.policies), "utf-8")
    if as_json:
        emit(found.as_dict() | {"out": out if not dry_run else None})
        return 0
    say(
        f"{found.attempts:,} attempts, {found.messages:,} messages that failed at least once; {found.left_out:,} rows "
        f"and {found.inconsistent:,} messages left out, {found.small_groups:,} groups too small"
    )
    _print_verdicts(found.verdicts)
    if out:
        note(f"nothing was written to {out}" if dry_run else f"the proposal is in {out}; read it before you use it")
    return 0


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print a row for each topic and error class, with today's policy beside the proposal."""
    rows = []
    for verdict in verdicts:
        policy = verdict.policy
        rows.append(
            (
                verdict.topic,
                verdict.error_class or "-",
                f"{verdict.messages:,}",
                f"{verdict.today['success']:.1%} / {verdict.today['tries']:.2f}",
                f"{verdict.proposed['success']:.1%} / {verdict.proposed['tries']:.2f}",
                f"{verdict.interval['success'][0]:.1%} to {verdict.interval['success'][1]:.1%}",
                f"{verdict.load['ratio']:.0%}",
                f"{span(verdict.proposed['wait_ms']['p50'])} / {span(verdict.proposed['wait_ms']['p90'])}",
                f"{span(policy['base_ms'])} x{policy['factor']:g} up to {span(policy['cap_ms'])}, "
                f"{policy['max_attempts']} attempts",
            )
        )
    head = ("topic", "error", "messages", "today: success / tries", "proposed", "95 %", "load", "p50 / p90", "policy")
    table(head, rows, right=(2, 3, 4))


@spark.command()
@click.argument("source")
@click.option(
    "--job-id", required=True, metavar="NAME", help="Name of this set of rows; a second run stores only the rest."
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=SQL",
    help="SQL expression for the column id, due_ms, topic, value, key, ...",
)
@click.option(
    "--spread",
    "spread_ms",
    type=DURATION,
    default=0,
    metavar="DURATION",
    help="Delay each due time by up to this; a hash of the id chooses the delay.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    metavar="N",
    help="Instead of --spread: about N rows a second from now on.",
)
@click.option(
    "--memory-limit", type=click.IntRange(min=1), metavar="BYTES", help="Memory that the server may use in the end."
)
@click.option(
    "--rejects", metavar="FOLDER", help="Folder for rows that cannot be stored; without it one such row stops the job."
)
@click.option("--past", is_flag=True, help="Also store rows whose due time has passed; they are due at once.")
@master_option
@dry_run_option
@json_option
@pass_session
def backfill(
    session: Session,
    source: str,
    job_id: str,
    columns: tuple[str, ...],
    spread_ms: int,
    rate: float | None,
    memory_limit: int | None,
    rejects: str | None,
    past: bool,
    master: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Schedule the rows of SOURCE (Parquet or JSON Lines). Each row is stored once, however often the job runs.

    \b
    Example:
      wheel-sched spark backfill reminders.parquet --job-id reminders-2026 --column "id=concat('r', id)" \\
        --column due_ms=remind_at_ms --column "topic='reminders'" --column "value=to_json(struct(*))"
    """
    from retry_topic.spark.jobs import backfill as run
    from retry_topic.spark.jobs.history import load_table

    parts = [column.partition("=") for column in columns]
    if wrong := [column for column, (_, sign, text) in zip(columns, parts, strict=True) if not sign or not text]:
        raise click.UsageError(f"Expected --column NAME=SQL, got: {wrong[0]}")
    with with_store(session, master) as job:
        done = run(
            load_table(job.spark, source),
            job.place,
            job_id=job_id,
            columns={name.strip(): text for name, _, text in parts},
            spread_ms=spread_ms,
            rate=rate,
            memory_limit=memory_limit,
            rejects=rejects,
            past=past,
            dry_run=dry_run,
        )
    if as_json:
        emit(done.as_dict())
        return 0
    good = done.rows - sum(done.bad.values())
    say(f"{done.rows:,} rows, {good:,} of them good, about {done.bytes_needed / 1e6:,.1f} MB")
    for why, count in done.bad.items():
        say(f"{amount(count, 'row')}: {why}")
    say("nothing was stored" if dry_run else f"{amount(done.stored, 'message')} stored")
    return 0


@spark.command()
@click.argument("history", required=False)
@click.option(
    "--target",
    "target_ms",
    type=DURATION,
    default="1s",
    show_default=True,
    help="A delivery that starts later than this after its due time is late.",
)
@click.option(
    "--objective",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.999,
    show_default=True,
    help="Share of deliveries that must not be late.",
)
@click.option("--html", metavar="FILE", help="Write the report as an HTML page with plots.")
@force_option
@master_option
@dry_run_option
@json_option
@pass_session
def slo(
    session: Session,
    history: str | None,
    target_ms: int,
    objective: float,
    html: str | None,
    force: bool,
    master: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Report how late deliveries were, from HISTORY (Parquet or JSON Lines of attempts, or kafka:TOPIC). Exit code 1
    when the objective is missed.

    Without HISTORY the command reads the history in the store.

    \b
    Example:
      wheel-sched spark slo attempts.parquet --target 500ms --objective 0.99 --html lateness.html
    """
    replace = html is not None and not dry_run and may_replace(html, force)
    from retry_topic.spark.jobs import slo as run
    from retry_topic.spark.jobs.page import page

    with attempts(session, master, history) as rows_of:
        found = run(rows_of, target_ms=target_ms, objective=objective)
    if html is not None and not dry_run:
        with whole_file(Path(html), replace=replace) as part:
            part.write_text(page(found), "utf-8")
    if as_json:
        emit(found.as_dict())
    else:
        names = ("deliveries", "late", "p50", "p99", "max")
        say(f"{found.deliveries:,} deliveries, {found.late:,} late, {found.early:,} early")
        say(f"{found.burn:.0%} of the error budget is used")
        table(
            ("topic", *names),
            [(row["topic"], *(f"{row[name]:,}" for name in names)) for row in found.topics],
            right=(1, 2, 3, 4, 5),
        )
        if html:
            note(f"nothing was written to {html}" if dry_run else f"the page is {html}")
    return 0 if found.met else 1


@spark.command()
@click.option("--from", "arrivals", metavar="PATH", help="Read arrivals (id, created_ms, due_ms) instead of the store.")
@click.option(
    "--precision", "precision_ms", type=DURATION, default="1ms", show_default=True, help="The coarsest acceptable tick."
)
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=50_000,
    show_default=True,
    help="Number of messages in the sample.",
)
@master_option
@dry_run_option
@json_option
@pass_session
def capacity(
    session: Session,
    arrivals: str | None,
    precision_ms: int,
    sample: int,
    master: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Propose tick, wheel size, shards and memory for a load: run the wheel on a sample of it. Changes nothing.

    \b
    Examples:
      wheel-sched spark capacity
      wheel-sched spark capacity --from arrivals.parquet --precision 10ms
    """
    from retry_topic.spark.jobs import capacity as run
    from retry_topic.spark.jobs.capacity import waiting
    from retry_topic.spark.jobs.history import load_table

    if arrivals:
        with running(master) as alone:
            found = run(load_table(alone, arrivals), precision_ms=precision_ms, sample=sample)
    else:
        with with_store(session, master) as job:
            rows = waiting(job.spark, job.place)
            found = run(rows, shards=job.place.shards, precision_ms=precision_ms, sample=sample)
    if not found.messages:
        raise NotDone("there are no messages to measure; nothing was changed")
    if as_json:
        emit(found.as_dict())
        return 0
    peak = f" at {instant(found.peak_at_ms)}" if found.peak_at_ms is not None else ""
    say(f"{amount(found.messages, 'message')}, {found.peak_due_per_s:,} due in the busiest second{peak}")
    say(f"delay p50 {span(found.delay_ms['p50'])}, p99 {span(found.delay_ms['p99'])}")
    say(f"the fullest shard holds {found.shard_skew:g} times the average")
    table(
        ("tick", "size", "levels", "most at once", "fullest bucket", "cascades", "wake-ups"),
        [
            (
                span(one.tick_ms),
                str(one.wheel_size),
                str(one.levels),
                f"{one.most_pending:,}",
                f"{one.fullest:,}",
                f"{one.cascades:,}",
                f"{one.wakeups:,}",
            )
            for one in found.candidates
        ],
        right=(0, 1, 2, 3, 4, 5, 6),
    )
    best = found.suggested
    say(
        f"suggested: tick {span(best['tick_ms'])}, size {best['wheel_size']} ({amount(best['levels'], 'level')}), "
        f"{amount(best['shards'], 'shard')}, {best['memory_bytes'] / 1e6:,.0f} MB"
    )
    return 0


@spark.command()
@click.option(
    "--grace",
    "grace_ms",
    type=DURATION,
    default="1m",
    show_default=True,
    help="Report items whose due time or lease ended longer ago than this.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired; let items with an expired lease wait again.")
@master_option
@dry_run_option
@yes_option
@json_option
@pass_session
def audit(
    session: Session, grace_ms: int, repair: bool, master: str | None, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Check every item of the store for damage. Exit code 1 when a finding is left.

    \b
    Examples:
      wheel-sched spark audit
      wheel-sched spark audit --repair --yes
    """
    from retry_topic.spark.jobs import audit as run

    if repair and not dry_run:
        confirm("Repair the damaged items?", yes)
    with with_store(session, master) as job:
        found = run(job.spark, job.place, grace_ms=grace_ms, repair=repair and not dry_run)
    if as_json:
        emit(found.as_dict())
    else:
        say(f"{amount(found.items, 'item')} checked")
        for flaw, count in sorted(found.found.items()):
            say(f"{count:,} {flaw}: {', '.join(f.id for f in found.findings if f.flaw == flaw)[:200]}")
        for line in found.drifted:
            say(line)
        if found.repair:
            say(f"{found.repaired:,} repaired, {found.recovered:,} leases recovered, {found.left:,} left")
        elif found.healthy:
            say("nothing is wrong")
    return 0 if (found.repair and not found.left) or found.healthy else 1
