"""The calls of the JSON API about tasks. They read by the same functions as the pages."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from wheel_sched.dashboard import ApiCall, Dashboard, Parameter
from wheel_sched.dashboard.json_values import json_value
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched_celery.dashboard import answers
from wheel_sched_celery.dashboard.opening import OpenedTasks, opened_of
from wheel_sched_celery.dashboard.pages import messages_of, selection_of
from wheel_sched_celery.management.paging import task_page


def _tasks(dashboard: Dashboard, request: Request) -> Any:
    opened = opened_of(dashboard)
    held = opened.tasks
    page = task_page(held, selection_of(request, held.now_ms()), cursor_of(request), limit_of(request))
    counts = held.counts()
    fields = {
        "tasks": [answers.task_as_dict(one, dashboard.config.show_payloads) for one in page.tasks],
        "cursor": page.cursor,
        "counts": answers.counts_as_dict(counts),
        "queues": answers.queues_of(counts),
        **_revoking(opened),
    }
    return json_value(fields)


def _task(dashboard: Dashboard, request: Request) -> Any:
    opened = opened_of(dashboard)
    _ = opened.tasks
    found = messages_of(dashboard, opened, request.path_params["id"])
    return json_value({"messages": found, **_revoking(opened)})


def _revoking(opened: OpenedTasks) -> dict[str, Any]:
    return {"can_revoke": not opened.why_no_revoke, "why_no_revoke": opened.why_no_revoke}


CALLS = (
    ApiCall(
        "/tasks",
        _tasks,
        "Celery tasks that wait for their ETA, in order of due time",
        answers.TASKS,
        (
            Parameter("state", "due (default), leased, held or dead"),
            Parameter("name", "name of the task, a pattern with * and ?"),
            Parameter("queue", "only tasks of this queue"),
            Parameter("within", "only tasks that are due within this time, such as 2h"),
            Parameter("limit", "at most this many, up to 200", "integer"),
            Parameter("cursor", "the cursor in the answer of the page before"),
        ),
    ),
    ApiCall("/tasks/{id:path}", _task, "One Celery task: its messages that wait", answers.ONE_TASK),
)
