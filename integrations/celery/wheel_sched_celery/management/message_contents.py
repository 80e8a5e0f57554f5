"""What the message of a held task contains, for people. Nothing of it is executed: only JSON is read.

The body of a Celery message has the arguments, and beside them what follows the task: a chain, callbacks, a chord. A
pickled or compressed body is not read at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from wheel_sched_celery.message.held_task import HeldTask

_LARGEST = 1_000_000  # bytes of a body that is read
_LISTED = 50  # tasks of a chain
_JSON = "application/json"
_PICKLE = ("application/x-python-serialize", "application/x-python-pickle")
_SAFE_TYPES = (_JSON, "text/plain", "application/data", "application/x-msgpack", "application/x-yaml")


class Follower(NamedTuple):
    """A task that Celery sends after this one."""

    kind: str  # "then", "on success", "on failure" or "chord"
    name: str
    id: str


class Contents(NamedTuple):
    """What a message contains.

    Args:
        kind: what the body is, in words, such as "JSON" or "pickled, not shown".
        text: the body; None when it is not shown.
        followers: the tasks that Celery sends afterwards, in order.
        more: how many further tasks were left out.
    """

    kind: str
    text: str | None
    followers: tuple[Follower, ...] = ()
    more: int = 0


def contents_of(task: HeldTask) -> Contents:
    """The contents of a task's message. A body that cannot be read has none."""
    size = len(task.body)
    if task.headers.get("compression"):
        return Contents(f"compressed ({size:,} bytes), not shown", None)
    if task.content_type in _PICKLE:
        return Contents(f"pickled ({size:,} bytes), not shown", None)
    if task.content_type != _JSON:
        return Contents(f"{size:,} bytes of {task.content_type}, not shown", None)
    if size > _LARGEST:
        return Contents(f"JSON of {size:,} bytes, too large to show", None)
    try:
        text = task.body if isinstance(task.body, str) else task.body.decode("utf-8")
        followers, more = _followers(json.loads(text))
    except (ValueError, RecursionError):
        return Contents(f"{size:,} bytes that are no JSON, not shown", None)
    return Contents("JSON", text, followers, more)


def may_execute(task: HeldTask) -> bool:
    """Whether reading the body may execute code: it is pickled, or of a type that is not known here."""
    return task.content_type not in _SAFE_TYPES


def _followers(payload: Any) -> tuple[tuple[Follower, ...], int]:
    """The tasks that follow, from a body of protocol 2, `[args, kwargs, embed]`, or of protocol 1, an object."""
    embed = payload[2] if isinstance(payload, list) and len(payload) == 3 else payload
    if not isinstance(embed, Mapping):
        return (), 0
    found: list[Follower] = []
    chain = [part for part in _signatures(embed.get("chain")) if part]
    found += [_follower("then", part) for part in reversed(chain)]  # Celery keeps the next task at the end
    found += [_follower("on success", part) for part in _signatures(embed.get("callbacks"))]
    found += [_follower("on failure", part) for part in _signatures(embed.get("errbacks"))]
    found += [_follower("chord", part) for part in _signatures(embed.get("chord"))]
    return tuple(found[:_LISTED]), max(0, len(found) - _LISTED)


def _signatures(value: Any) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, Mapping)]


def _follower(kind: str, signature: Mapping[str, Any]) -> Follower:
    options = signature.get("options")
    task_id = options.get("task_id") if isinstance(options, Mapping) else None
    return Follower(kind, str(signature.get("task") or "?"), str(task_id or ""))
