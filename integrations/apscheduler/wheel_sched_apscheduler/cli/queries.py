"""`wheel-sched aps list | show | in-flight | history`: show jobs without loading them."""

from __future__ import annotations

from dataclasses import asdict

import click

from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.wording import amount, instant, one_line, relative, span
from wheel_sched_apscheduler.entries import JOB_STATES, JobEntry, JobState
from wheel_sched_apscheduler.management.jobs import as_dict, detailed_job, listed_jobs
from wheel_sched_apscheduler.management.opening import opened_jobs
from wheel_sched_apscheduler.run_times import to_ms

_SHOWN = 50  # lines of a listing without --limit


@click.command("list")
@click.option("--state", type=click.Choice(JOB_STATES), help="Only jobs in this state.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Number of jobs at most (default: {_SHOWN}).")
@json_option
@pass_session
def list_jobs(session: Session, state: JobState | None, tag: str | None, limit: int | None, as_json: bool) -> None:
    """List jobs: scheduled ones in order of next run time, then paused, in flight and quarantined ones.

    \b
    Examples:
      wheel-sched aps list
      wheel-sched aps list --state quarantined
      wheel-sched aps list --tag nightly --json
    """
    most = limit or (None if as_json else _SHOWN)
    rows = []
    more = False
    with opened_jobs(session.loaded) as store:
        now_ms = store.store.now_ms()
        for number, entry in enumerate(listed_jobs(store, state, tag)):
            if number == most:
                more = True
                break
            if as_json:
                emit(as_dict(entry))
            else:
                rows.append(_row(entry, now_ms))
    if as_json:
        return
    if rows:
        table(("state", "next run", "at", "id", "function", "trigger", "reason"), rows)
    else:
        note("no jobs" + (" that match" if state or tag else ""))
    if rows and state == "quarantined":
        note("repair the code, then `wheel-sched aps release JOB...`, or `wheel-sched aps repoint OLD NEW`")
    if more:
        note(f"the first {most} are shown; --limit N shows more")


@click.command()
@click.argument("job_id", metavar="JOB")
@json_option
@pass_session
def show(session: Session, job_id: str, as_json: bool) -> None:
    """Show one job, and its last runs.

    \b
    Examples:
      wheel-sched aps show nightly-report
    """
    with opened_jobs(session.loaded) as store:
        job = detailed_job(store, job_id)
    if as_json:
        emit(job.as_dict())
        return
    for name, value in as_dict(job.entry).items():
        if value not in (None, "", [], {}):
            say(f"{name:<14}{value}")
    for run in job.running:
        say(f"{'running':<14}{run.occurrence_id or '?'} at {run.owner or 'a process that has not announced it yet'}")
    for record in job.history:
        say(f"{'ran':<14}{relative(record.finished_ms, job.now_ms)}: {record.outcome} {record.error}".rstrip())


@click.command("in-flight")
@json_option
@pass_session
def in_flight(session: Session, as_json: bool) -> None:
    """List the runs that have not ended: in which process, and when the lease ends.

    \b
    Examples:
      wheel-sched aps in-flight
    """
    with opened_jobs(session.loaded) as store:
        now_ms = store.store.now_ms()
        claims = store.in_flight()
    if as_json:
        for run in claims:
            emit(asdict(run))
        return
    rows = [
        (
            run.job_id,
            run.occurrence_id or "-",
            run.owner or "-",
            "-" if run.since_ms is None else span(max(now_ms - run.since_ms, 0)),
            relative(run.lease_until_ms or now_ms, now_ms),
        )
        for run in claims
    ]
    if rows:
        table(("job", "occurrence", "owner", "for", "lease ends"), rows)
    else:
        note("nothing is in flight")


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option(
    "--limit", type=click.IntRange(1), default=_SHOWN, show_default=True, metavar="N", help="Number of runs at most."
)
@json_option
@pass_session
def history(session: Session, job_id: str | None, limit: int, as_json: bool) -> None:
    """List how the last runs ended, newest first.

    \b
    Examples:
      wheel-sched aps history
      wheel-sched aps history nightly-report --limit 10
    """
    with opened_jobs(session.loaded) as store:
        now_ms = store.store.now_ms()
        records = store.history(job_id=job_id, limit=limit)
    if as_json:
        for record in records:
            emit({**asdict(record), "lateness_ms": record.lateness_ms})
        return
    rows = [
        (
            relative(record.finished_ms, now_ms),
            record.outcome,
            span(max(record.lateness_ms, 0)),
            span(max(record.finished_ms - (record.started_ms or record.finished_ms), 0)),
            record.occurrence_id,
            record.owner,
            one_line(record.error, 60),
        )
        for record in records
    ]
    if rows:
        table(("ended", "outcome", "late", "took", "occurrence", "owner", "error"), rows, right=(2, 3))
        note(amount(len(rows), "run"))
    else:
        note("no runs are on record")


def _row(entry: JobEntry, now_ms: int) -> tuple[str, ...]:
    next_ms = None if entry.next_run_time is None else to_ms(entry.next_run_time)
    return (
        entry.state,
        "-" if next_ms is None else relative(next_ms, now_ms),
        "-" if next_ms is None else instant(next_ms),
        entry.id,
        entry.func,
        entry.trigger,
        one_line(entry.reason, 120),
    )
