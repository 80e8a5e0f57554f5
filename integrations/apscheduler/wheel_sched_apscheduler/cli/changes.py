"""`wheel-sched aps run-now | pause | resume | remove`: change jobs by id."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import click
from apscheduler.jobstores.base import JobLookupError

from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.options import Session, confirm, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, emit, instant, note
from wheel_sched_apscheduler.cli.opening import opened_jobs
from wheel_sched_apscheduler.codec import NotHere, Unreadable
from wheel_sched_apscheduler.instants import to_ms
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

ids_argument = click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)


@click.command("run-now")
@ids_argument
@yes_option
@json_option
@pass_session
def run_now(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Make jobs due at once; a paused one too. Recurring ones go on from there.

    \b
    Examples:
      wheel-sched aps run-now nightly-report
    """

    agree("Run {} now?", len(job_ids), yes)

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.run_now(job_id)
        return "due now"

    return _each(session, job_ids, change, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def pause(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Take jobs out of the schedule and keep them; a run under way ends.

    \b
    Examples:
      wheel-sched aps pause nightly-report
    """

    agree("Pause {}?", len(job_ids), yes)

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.pause(job_id)
        return "paused"

    return _each(session, job_ids, change, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def resume(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Schedule paused jobs from now on; one whose trigger has no more run times is removed.

    \b
    Examples:
      wheel-sched aps resume nightly-report
    """

    agree("Resume {}?", len(job_ids), yes)

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        moment = store.resume(job_id)
        return "removed: its trigger has ended" if moment is None else f"next run {instant(to_ms(moment))}"

    return _each(session, job_ids, change, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def remove(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove jobs for good; a run under way ends.

    \b
    Examples:
      wheel-sched aps remove old-report --yes
    """
    confirm(f"Remove {amount(len(job_ids), 'job')} for good?", yes)

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.remove_job(job_id)
        return "removed"

    return _each(session, job_ids, change, as_json)


def agree(question: str, count: int, yes: bool) -> None:
    """Ask before several jobs are changed; `{}` in the question is their number.

    Raises:
        UsageError, CommandFailed: see `confirm`.
    """
    if count > 1:
        confirm(question.format(amount(count, "job")), yes)


def _each(
    session: Session, job_ids: tuple[str, ...], change: Callable[[RedisWheelJobStore, str], str], as_json: bool
) -> int:
    code = OK
    with opened_jobs(session) as store:
        for job_id in job_ids:
            try:
                done, found = change(store, job_id), True
            except JobLookupError:
                done, found, code = "there is no such job", False, FAILED
            except NotHere as error:
                done, found, code = f"{error}; nothing was changed", True, FAILED
            except Unreadable as error:
                hint = f"`wheel-sched aps remove {shlex.quote(job_id)}` removes it for good"
                done, found, code = f"its record is damaged: {error}; nothing was changed; {hint}", True, FAILED
            if as_json:
                emit({"id": job_id, "found": found, "done": done})
            else:
                note(f"{job_id}: {done}")
    return code
