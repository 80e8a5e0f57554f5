"""Collapse and debounce: with these options of `apply_async`, only one of several tasks with the same key runs.

    add.apply_async((1, 2), countdown=30, wheel_debounce="report-7")    the last one, by its own countdown
    add.apply_async((1, 2), countdown=30, wheel_collapse="report-7")    the first one, while it waits

The options are read here and do not reach the broker, if the app holds tasks. They belong to the call: a retry of the
task does not have them. While the store is away and `on_outage` is "stock", all tasks of a key are sent and run.
"""

from __future__ import annotations

import math
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.once_per_key import LONGEST_WAIT_MS, collapse_ref, debounce_ref
from wheel_sched_celery.message.held_task import HeldTask, bounded, route_of

logger = logger_of("wheel_sched.celery")

OPTIONS = ("wheel_collapse", "wheel_debounce", "wheel_max_wait")
_LONGEST_S = 10**9
_AWAY_S = 30  # after the result backend has failed, no result is marked for this time


@dataclass(frozen=True, slots=True)
class OncePerKey:
    """What the options of a call say about collapse and debounce.

    Args:
        ref: the ref of the task's item.
        debounces: whether the last task of the key is run; otherwise the first.
    """

    ref: str
    debounces: bool

    def marked(self, task: HeldTask) -> HeldTask:
        """The task with its ref.

        A debounced task may be due before its ETA, because `wheel_max_wait` has passed. A worker would still wait for
        the ETA. So the message gets the present time as its ETA, and the item keeps the due time.

        Raises:
            Rejected: the ETA of a debounced task cannot be rewritten, see `HeldTask.with_eta`.
        """
        if not self.debounces:
            return replace(task, once_ref=self.ref)
        return replace(task.with_eta(time.time_ns() // 1_000_000), once_ref=self.ref, due_ms=task.eta_ms)


def once_per_key(options: MutableMapping[str, Any]) -> OncePerKey | None:
    """Take the options of collapse and debounce out of the options of a publish. None when there are none.

    Raises:
        Rejected: both are given, a key is empty or no text, `wheel_max_wait` is given without a key, or that of a
            debounce is not between 0 and 10**9 seconds; nothing was sent.
    """
    collapse, debounce, max_wait = (options.pop(name, None) for name in OPTIONS)
    if collapse is None and debounce is None:
        if max_wait is not None:
            raise Rejected("expected wheel_debounce with wheel_max_wait, got none; the task was not sent")
        return None
    if collapse is not None and debounce is not None:
        raise Rejected("expected wheel_collapse or wheel_debounce, got both; the task was not sent")
    key = debounce if collapse is None else collapse
    if not isinstance(key, str) or not key:
        raise Rejected(
            f"expected the key of wheel_collapse or wheel_debounce to be text, got: {key!r}; nothing was sent"
        )
    if collapse is not None:
        return OncePerKey(collapse_ref(key), debounces=False)
    if max_wait is None:
        return OncePerKey(debounce_ref(key, LONGEST_WAIT_MS), debounces=True)
    if isinstance(max_wait, bool) or not isinstance(max_wait, int | float) or not 0 < max_wait <= _LONGEST_S:
        raise Rejected(f"expected wheel_max_wait to be seconds above 0, got: {max_wait!r}; the task was not sent")
    return OncePerKey(debounce_ref(key, round(max_wait * 1000)), debounces=True)


class SupersededTasks:
    """Reports tasks that do not run because another task of the same key runs: in the log and in the result backend.

    Any thread may call any method.

    Args:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._away_until_s = 0.0

    def announce(self, task: HeldTask, item_id: str, stored: Stored) -> None:
        """Log the task that is not run, if there is one, and mark its result REVOKED. Raises nothing.

        The result is not marked if `task` ignores its result, or if the result backend fails, has failed a moment ago
        or would try for ever.

        Args:
            task: the task that was given to the store.
            item_id: the id of its item.
            stored: the answer of the store.
        """
        other = stored.others.get(0)
        if other is None:
            return
        gone, stays = (item_id, other) if stored.outcomes[0] is Outcome.SUPERSEDED else (other, item_id)
        logger.info(
            "celery.superseded: task %s is not run: task %s of the same key runs in its place; queue %s",
            *(bounded(route_of(gone)), bounded(route_of(stays)), task.queue or task.routing_key),
        )
        if route_of(gone) != route_of(stays) and not task.headers.get("ignore_result"):
            self._revoke(task.task_id if gone == item_id else route_of(gone))

    def _revoke(self, task_id: str) -> None:
        """Mark the result of a task REVOKED. For `_AWAY_S` seconds after a failure, do nothing."""
        if time.monotonic() < self._away_until_s:
            return
        try:
            backend = self._app.backend
            if getattr(backend, "always_retry", False) and getattr(backend, "max_retries", None) == math.inf:
                return  # the backend would try for ever
            backend.mark_as_revoked(task_id, "superseded", store_result=True)
        except Exception as error:  # a result backend may raise anything
            self._away_until_s = time.monotonic() + _AWAY_S
            logger.warning(
                "celery.not_marked: task %s is not run, but its result stays PENDING; no result is marked for the next "
                "%d s: %r",
                *(bounded(task_id), _AWAY_S, error),
            )
