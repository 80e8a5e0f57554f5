"""The pages about tasks that wait. They only read, and execute nothing of a message."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.dashboard.json_values import json_value
from wheel_sched.dashboard.opened_later import page_with
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.dashboard.rendering import as_json, query, shown_lines
from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.items import STATES
from wheel_sched_celery.dashboard import answers
from wheel_sched_celery.dashboard.opening import OpenedTasks, opened_of
from wheel_sched_celery.management import TaskFilter, WaitingTask
from wheel_sched_celery.management.choosing import NOT_HERE
from wheel_sched_celery.management.last_error import last_error
from wheel_sched_celery.management.paging import task_page

_FOLDER = "wheel_sched_celery"
_BODY = 20_000  # characters
_NAME = 200
STATE_WORDS = {"due": "waiting", "leased": "on the way", "held": "held", "dead": "given up"}

with_tasks = page_with(opened_of, f"{_FOLDER}/absent.html")
"""Makes a page of a function that reads the held tasks. While there are none, the page says what to start."""


def selection_of(request: Request, now_ms: int) -> TaskFilter:
    """The filter in the query of a request: name, queue, state, within (a duration).

    Raises:
        Rejected: there is no such state, the name is too long, or `within` is no duration.
    """
    asked = request.query_params
    state = asked.get("state") or "due"
    if state not in STATES:
        raise Rejected(f"expected state to be one of {', '.join(STATES)}, got: {state[:40]!r}")
    name, within = asked.get("name", "").strip(), asked.get("within", "").strip()
    if len(name) > _NAME:
        raise Rejected(f"expected a name of at most {_NAME} characters, got {len(name):,}")
    try:
        until_ms = now_ms + parse_duration(within) if within else None
    except ConfigError as error:
        raise Rejected(f"expected within to be a duration such as 10m or 2h, got: {within[:40]!r}") from error
    return TaskFilter((), name or None, asked.get("queue") or None, None, until_ms, (state,))


@with_tasks
def tasks(dashboard: Dashboard, request: Request, opened: OpenedTasks) -> Response:
    """The tasks in a state."""
    held = opened.tasks
    now_ms = held.now_ms()
    selection = selection_of(request, now_ms)
    page = task_page(held, selection, cursor_of(request), limit_of(request))
    counts = held.counts()
    asked = request.query_params
    pairs = {name: asked.get(name, "") for name in ("name", "queue", "within", "limit")} | {
        "state": selection.states[0]
    }
    values = {
        "state": selection.states[0],
        "states": [(state, STATE_WORDS[state], counts.total(state)) for state in STATES],
        "queues": answers.queues_of(counts),
        "tasks": [answers.task_as_dict(one, dashboard.config.show_payloads) for one in page.tasks],
        "cursor": page.cursor,
        "pairs": pairs,
        "back": f"/tasks{query(pairs)}",
        "lines": "\n".join(one.found.id for one in page.tasks if one.found.id.isprintable()),
        "why_no_revoke": opened.why_no_revoke,
        "now_ms": now_ms,
    }
    return dashboard.page(request, f"{_FOLDER}/tasks.html", values)


@with_tasks
def task(dashboard: Dashboard, request: Request, opened: OpenedTasks) -> Response:
    """Everything about one task: each of its messages that waits here."""
    task_id = request.path_params["id"]
    messages = messages_of(dashboard, opened, task_id)
    payloads = [
        (
            shown_lines(as_json(json_value(one.get("headers", {}))), _BODY),
            shown_lines(one.get("body") or "", _BODY),
        )
        for one in messages
    ]
    values = {
        "task_id": task_id,
        "messages": list(zip(messages, payloads, strict=True)),
        "words": STATE_WORDS,
        "why_no_revoke": opened.why_no_revoke,
        "now_ms": opened.tasks.now_ms(),
    }
    return dashboard.page(request, f"{_FOLDER}/task.html", values)


def messages_of(dashboard: Dashboard, opened: OpenedTasks, task_id: str) -> list[dict[str, Any]]:
    """Everything about the messages of a task.

    Args:
        dashboard: the dashboard.
        opened: the held tasks.
        task_id: the id of a task, or of one item.

    Raises:
        NotFound: no task of this id waits here.
    """
    found = opened.tasks.get(task_id)
    if not found:
        raise NotFound(f"no task {task_id[:200]!r} waits here: {NOT_HERE}")
    return [answers.message_as_dict(one, dashboard.config.show_payloads, _error_of(opened, one)) for one in found]


def _error_of(opened: OpenedTasks, waiting: WaitingTask) -> str:
    """The error of the last attempt; "" when it is not known."""
    if opened.app is None or waiting.task is None or not waiting.task.retries:
        return ""
    return last_error(opened.app, waiting.task.task_id)
