"""The header by which a worker knows a message that the store has sent: such a message is never taken over again.

Else a worker with another horizon, or another clock, takes back what a dispatcher is just about to settle, and the
task is gone. The header names the very message (task, retry, ETA): Celery copies a task's headers into its retries, and
a copy in another message is no mark.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MARK: Final = "wheel-sched-sent"


def marked(headers: Mapping[str, Any], task_id: str, retries: int) -> dict[str, Any]:
    """`headers` with the mark of their message; of protocol 1, whose ETA stands in the body, id and retries alone."""
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
    """What tells a message from others, as the texts that it carries: no zone or clock has a say in it."""
    return f"{headers.get('id')}:{headers.get('retries') or 0}:{headers.get('eta')}"
