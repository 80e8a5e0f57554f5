"""`wheel-sched operations`: lists, confirms, runs, pauses and cancels durable operations on dead letters.

The dashboard makes operations, and can run them too. The store holds their state, so one process can continue an
operation that another process began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.dead_letter_operations import DeleteDeadLetters, ReplayDeadLetters
from retry_topic.management.opening import opened_connection, secrets_of
from retry_topic.management.operation_words import confirmation, meaning, outcome
from wheel_sched.cli.options import Session, confirm, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.operations import DurableOperation, OperationBook, OperationRunner
from wheel_sched.management.wording import amount, one_line, relative, when

_SHOWN = 50


@click.group(name="operations", help="Confirm, run and stop replays and deletions of many dead letters.")
def operations() -> None:
    """Group of the commands about operations."""


@operations.command(name="list")
@click.option("--limit", type=click.IntRange(1, 500), default=_SHOWN, show_default=True, help="Show at most N.")
@json_option
@pass_session
def list_operations(session: Session, limit: int, as_json: bool) -> None:
    """List the operations of the last 30 days. The one that changed last comes first.

    \b
    Examples:
      wheel-sched operations list
    """
    with opened_connection(settings_of(session)) as connection:
        found, more = OperationBook(connection.store).newest(limit)
        now_ms = connection.store.now_ms()
    if as_json:
        for one in found:
            emit(one.as_dict())
        return
    if not found:
        note("no operation was made in the last 30 days; the dashboard makes them, on the page of dead letters")
        return
    lines = [
        (
            one.id,
            one.state,
            f"{one.done:,}",
            f"{one.matched:,}",
            relative(one.created_ms, now_ms),
            one_line(meaning(one), 80),
        )
        for one in found
    ]
    table(("id", "state", "done", "of", "made", "operation"), lines, right=(2, 3))
    if more is not None:
        note(f"the first {limit} are shown; --limit N shows more")


@operations.command()
@click.argument("operation_id", metavar="ID")
@json_option
@pass_session
def show(session: Session, operation_id: str, as_json: bool) -> None:
    """Show an operation: what it means, how far it is, and what was left.

    \b
    Examples:
      wheel-sched operations show 3f2a9c0d1e5b
    """
    with opened_connection(settings_of(session)) as connection:
        found = OperationBook(connection.store).found(operation_id)
        now_ms = connection.store.now_ms()
    if as_json:
        emit(found.as_dict())
        return
    say(meaning(found))
    say(outcome(found))
    say(f"made by {found.who}, {when(found.created_ms, now_ms)}")
    if found.started_ms:
        say(f"confirmed by {found.confirmed_by}, {when(found.started_ms, now_ms)}")
    for line in found.samples:
        say(f"  {line}")


@operations.command(name="confirm")
@click.argument("operation_id", metavar="ID")
@yes_option
@json_option
@pass_session
def confirm_operation(session: Session, operation_id: str, yes: bool, as_json: bool) -> None:
    """Let an operation change exactly the letters that it has counted. `operations run`, or a dashboard, runs it.

    \b
    Examples:
      wheel-sched operations confirm 3f2a9c0d1e5b
    """
    with opened_connection(settings_of(session)) as connection:
        book = OperationBook(connection.store)
        found = book.found(operation_id)
        found.check_step("confirmed")
        confirm(f"{confirmation(found)}?", yes)
        _report(book.confirm(found.id, "the command line", found.version), as_json)


def _changing(name: str, words: str, change: Callable[[OperationBook, str], DurableOperation]) -> None:
    """Make a command that changes the state of an operation."""

    @operations.command(name=name, help=f"{words}\n\n\b\nExamples:\n  wheel-sched operations {name} 3f2a9c0d1e5b")
    @click.argument("operation_id", metavar="ID")
    @json_option
    @pass_session
    def changed(session: Session, operation_id: str, as_json: bool) -> None:
        with opened_connection(settings_of(session)) as connection:
            _report(change(OperationBook(connection.store), operation_id), as_json)


_changing("pause", "Stop an operation before its next batch.", OperationBook.pause)
_changing("resume", "Let a paused operation run on.", OperationBook.resume)
_changing("cancel", "End an operation before its next batch. What it has changed stays changed.", OperationBook.cancel)


@operations.command()
@json_option
@pass_session
def run(session: Session, as_json: bool) -> None:
    """Run the operations until all have ended, are paused, or wait for somebody to confirm them.

    \b
    Examples:
      wheel-sched operations run
    """
    settings, ended = settings_of(session), list[DurableOperation]()
    with opened_connection(settings) as connection:
        kinds = (ReplayDeadLetters(connection, lambda: secrets_of(settings)), DeleteDeadLetters(connection))
        book, pause = OperationBook(connection.store), threading.Event()
        with closing(OperationRunner(connection.store, kinds, on_end=ended.append)) as runner:
            while any(one.batch is not None or one.state in ("counting", "running") for one in book.open()):
                pause.wait(runner.run_once())
        waiting = sum(one.state == "ready" for one in book.open())
    for one in ended:
        _report(one, as_json)
    if waiting:
        note(f"{amount(waiting, 'operation')} counted and not confirmed; see `wheel-sched operations list`")
    if not ended and not waiting:
        note("there was nothing to run")


def _report(changed: DurableOperation, as_json: bool) -> None:
    emit(changed.as_dict()) if as_json else say(f"{changed.id} {outcome(changed)}")
