"""A held task as listings show it, and the filter that selects tasks.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from wheel_sched.store.core.items import MAX_DUE_MS, Found, State
from wheel_sched_celery.message.held_task import REVOKED, TAKEN_OVER, HeldTask
from wheel_sched_celery.message.stored_forms import decode

WIDEST_LEAD_MS: Final = 60_000  # an item's due time is the ETA minus the lead of the app that held it


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """One item of the store and the task in it.

    Args:
        found: the item.
        task: the held message; None when it cannot be read.
    """

    found: Found
    task: HeldTask | None

    @property
    def id(self) -> str:
        """The task's id; the item's id when the task cannot be read."""
        return self.found.id if self.task is None else self.task.task_id

    @property
    def name(self) -> str:
        return "" if self.task is None else self.task.name

    @property
    def route(self) -> str:
        """The text from which the shard of the item is computed."""
        return self.found.route or self.found.id

    @property
    def queue(self) -> str:
        return self.found.topic

    @property
    def eta_ms(self) -> int | None:
        return None if self.task is None else self.task.eta_ms

    @property
    def headers(self) -> Mapping[str, Any]:
        return {} if self.task is None else self.task.headers

    @property
    def taken_over(self) -> bool:
        """Whether a worker received the task from a queue and put it into the store."""
        return TAKEN_OVER in self.found.refs

    @property
    def revoked(self) -> bool:
        """Whether the task is revoked and the revoke is not announced yet.

        Such a task runs only if somebody gives it another ETA.
        """
        return self.found.state == "held" and self.found.reason == REVOKED

    def as_dict(self) -> dict[str, Any]:
        """The task as plain values for JSON. Times are in milliseconds since 1970 and in RFC 3339."""
        task, headers = self.task, self.headers
        return {
            "id": self.id,
            "task": self.name,
            "queue": self.queue,
            "state": self.found.state,
            "eta_ms": self.eta_ms,
            "eta": None if self.eta_ms is None else _iso(self.eta_ms),
            "retries": None if task is None else task.retries,
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "exchange": None if task is None else task.exchange,
            "routing_key": None if task is None else task.routing_key,
            "priority": None if task is None else task.priority,
            "expires": headers.get("expires"),
            "origin": headers.get("origin"),
            "root_id": headers.get("root_id"),
            "parent_id": headers.get("parent_id"),
            "taken_over": self.taken_over,
            "reason": self.found.reason if self.found.state in ("held", "dead") else None,
            "bytes": len(self.found.body),
            "item": self.found.id,
        }


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """A filter. A task matches when it meets every condition.

    Args:
        ids: ids of tasks or of items. Defaults to any.
        name: name of the task, a pattern with `*` and `?`. Defaults to any.
        queue: the queue of the task. Defaults to any.
        since_ms: the ETA is this time or later, in ms since 1970. Defaults to any.
        until_ms: the ETA is before this time, in ms since 1970. Defaults to any.
        states: states of the item in the store. Defaults to due and held; dead tasks could not be published.
    """

    ids: tuple[str, ...] = ()
    name: str | None = None
    queue: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    states: tuple[State, ...] = ("due", "held")

    @property
    def narrow(self) -> bool:
        """Whether the filter has a condition besides the states."""
        return bool(self.ids) or any(
            value is not None for value in (self.name, self.queue, self.since_ms, self.until_ms)
        )

    def bounds(self, state: State) -> tuple[int, int]:
        """The least and the greatest score, in the store, of items in this state that can match.

        Assumes that no task was held with a lead of more than `WIDEST_LEAD_MS`.
        """
        if state != "due":  # in other states the store has another order
            return 0, MAX_DUE_MS
        least_ms = max(0, (self.since_ms or 0) - WIDEST_LEAD_MS)
        return least_ms, MAX_DUE_MS if self.until_ms is None else max(0, self.until_ms)

    def matches(self, waiting: WaitingTask) -> bool:
        """Whether a task meets every condition."""
        eta_ms = waiting.eta_ms
        return (
            waiting.found.state in self.states
            and (not self.ids or waiting.id in self.ids or waiting.found.id in self.ids)
            and (self.name is None or fnmatchcase(waiting.name, self.name))
            and (self.queue is None or waiting.queue == self.queue)
            and (self.since_ms is None or (eta_ms is not None and eta_ms >= self.since_ms))
            and (self.until_ms is None or (eta_ms is not None and eta_ms < self.until_ms))
        )


def read(found: Found) -> WaitingTask:
    """Read the task of an item. If the item cannot be read, `task` of the result is None."""
    try:
        task = decode(found.body)
    except Exception:  # hostile data may be of any shape
        return WaitingTask(found, None)
    return WaitingTask(found, task if _is_sound(task) else None)


def _is_sound(task: HeldTask) -> bool:
    """Whether the fields have the types that `HeldTask` says. Another program may have stored anything."""
    texts: tuple[object, ...] = (task.task_id, task.name, task.exchange, task.routing_key, task.queue)
    parts: tuple[object, ...] = (task.headers, task.properties, *task.declare)
    body: object = task.body
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(part, Mapping) for part in parts)
        and isinstance(body, bytes | str)
        and type(task.eta_ms) is int
        and 0 <= task.eta_ms <= MAX_DUE_MS
    )


def _iso(at_ms: int) -> str:
    text = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{at_ms % 1000:03d}Z"
