"""`celery wheel list` and `celery wheel show`."""

from __future__ import annotations

import sys
from typing import Any

import click

from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import emit, note, paint, say, table
from wheel_sched.errors import NotDone
from wheel_sched.management.wording import instant, one_line, relative, state_word, when
from wheel_sched_celery.cli.choosing import held_tasks, selecting
from wheel_sched_celery.management import TaskFilter, WaitingTask
from wheel_sched_celery.management.choosing import NOT_HERE

_SHOWN = 50  # lines of a listing unless --limit says otherwise
_PREVIEW = 60  # characters of arguments in a line


@click.command("list")
@selecting
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many (default: 50; --json: all).")
@json_option
@click.pass_context
def list_tasks(ctx: click.Context, selection: TaskFilter, limit: int | None, as_json: bool) -> None:
    """List held tasks, state by state in order of due time.

    \b
    Examples:
      celery -A proj wheel list
      celery -A proj wheel list --queue mail --until +1h
      celery -A proj wheel list --task 'proj.billing.*' --json | jq .id
    """
    tasks = held_tasks(ctx)
    if as_json:
        for waiting in tasks.select(selection, limit):
            emit(waiting.as_dict())
        return
    now_ms, most = tasks.now_ms(), limit or _SHOWN
    found = list(tasks.select(selection, most + 1))
    if not found:
        note("no held task matches" if selection.narrow else "no task is held")
        return
    table(("due", "eta", "state", "queue", "task", "id", "args"), [_row(each, now_ms) for each in found[:most]])
    if len(found) > most and limit is None:
        note(f"the first {most} are shown; --limit N shows more")


def _row(waiting: WaitingTask, now_ms: int) -> tuple[str, ...]:
    eta_ms = waiting.eta_ms
    return (
        "?" if eta_ms is None else relative(eta_ms, now_ms),
        "?" if eta_ms is None else instant(eta_ms),
        state_word(waiting.found.state),
        waiting.queue,
        waiting.name or "(cannot be read)",
        waiting.id,
        one_line(str(waiting.headers.get("argsrepr") or ""), _PREVIEW),
    )


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--body", "raw", is_flag=True, help="The message's body alone, byte for byte.")
@json_option
@click.pass_context
def show(ctx: click.Context, task_id: str, raw: bool, as_json: bool) -> None:
    """Show everything about one task: state, ETA, queue, headers, body.

    \b
    Examples:
      celery -A proj wheel show 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f
      celery -A proj wheel show 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f --json | jq .headers
    """
    tasks = held_tasks(ctx)
    found = tasks.get(task_id)
    if not found:
        raise NotDone(f"no task {task_id} waits here: {NOT_HERE}; see `celery wheel list`")
    if raw:
        body: Any = found[0].found.body if found[0].task is None else found[0].task.body
        sys.stdout.buffer.write(body if isinstance(body, bytes) else body.encode())
        return
    now_ms = tasks.now_ms()
    for waiting in found:
        if as_json:
            emit({**waiting.as_dict(), "headers": dict(waiting.headers)})
        else:
            _show_one(waiting, now_ms)


def _show_one(waiting: WaitingTask, now_ms: int) -> None:
    task, found = waiting.task, waiting.found
    lines: list[tuple[str, Any]] = [
        ("id", waiting.id),
        ("task", waiting.name or None),
        ("state", state_word(waiting.found.state)),
        ("why", found.reason if found.state in ("held", "dead") else None),
        ("eta", None if waiting.eta_ms is None else when(waiting.eta_ms, now_ms)),
        ("queue", waiting.queue),
        ("sent by", waiting.headers.get("origin")),
        ("", "with stock Celery; a worker took it over" if waiting.taken_over else None),
        ("item", found.id),
    ]
    if task is not None:
        lines += [
            ("exchange", task.exchange or None),
            ("routing key", task.routing_key),
            ("priority", task.priority),
            ("retries", task.retries or None),
            ("args", waiting.headers.get("argsrepr")),
            ("kwargs", waiting.headers.get("kwargsrepr")),
            ("expires", waiting.headers.get("expires")),
            ("root", waiting.headers.get("root_id") if waiting.headers.get("root_id") != waiting.id else None),
            ("parent", waiting.headers.get("parent_id")),
            ("body", f"{len(task.body):,} of {task.content_type}, --body shows it"),
        ]
    for name, text in lines:
        if text is not None:
            say(f"{paint(name.ljust(12), 'bold')} {one_line(str(text), 400)}")
    say()
