"""The header that marks a message as sent by the store, so that no worker takes it over again.

Without it a worker with another horizon or another clock takes the message back just before the dispatcher settles its
item, and the task is lost. The mark names its message (task, retry, ETA), because Celery copies the headers of a task
into its retries: a mark that was copied into another message does not count.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MARK: Final = "wheel-sched-sent"


def marked(headers: Mapping[str, Any], task_id: str, retries: int) -> dict[str, Any]:
    """`headers` with the mark. In protocol 1 the ETA lies in the body, so the mark names id and retries only."""
    if "task" in headers:
        return {**headers, MARK: _name(headers)}
    return {**headers, MARK: f"{task_id}:{retries}"}


def unmarked(headers: Mapping[str, Any]) -> dict[str, Any]:
    """`headers` as they were before `marked`."""
    return {name: value for name, value in headers.items() if name != MARK}


def is_marked(headers: Mapping[str, Any] | None, body: Any) -> bool:
    """Whether the store has sent this message."""
    mark = (headers or {}).get(MARK)
    if mark is None or headers is None:
        return False
    if "task" in headers:
        return bool(mark == _name(headers))
    return isinstance(body, Mapping) and bool(mark == f"{body.get('id')}:{body.get('retries') or 0}")


def _name(headers: Mapping[str, Any]) -> str:
    """The name of a message, made of the texts it carries, so that time zones and clocks do not matter."""
    return f"{headers.get('id')}:{headers.get('retries') or 0}:{headers.get('eta')}"
