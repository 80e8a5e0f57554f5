"""The error for which a waiting task is retried, from the result backend of the running application.

Celery puts no error into the message of a retry, only into the task's result. The result is read as JSON text, and
never by the backend's own reader, which may import and make exception classes that the result names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wheel_sched.escaping import logger_of

logger = logger_of("wheel_sched.celery")

_LONGEST = 4_000


def last_error(app: Any, task_id: str) -> str:
    """The error of the last attempt as text; "" when it is not known.

    Args:
        app: the running application.
        task_id: the id of the task.
    """
    backend = app.backend
    if getattr(backend, "serializer", "") != "json" or not hasattr(backend, "get_key_for_task"):
        return ""
    try:
        raw = backend.get(backend.get_key_for_task(task_id))
        found = json.loads(raw) if raw else None
    except Exception as error:  # a result backend may raise anything
        logger.warning("celery.no_result: the last error of task %s cannot be read: %r", task_id, error)
        return ""
    if not isinstance(found, Mapping) or found.get("status") != "RETRY":
        return ""
    result = found.get("result")
    if not isinstance(result, Mapping):
        return ""
    message = result.get("exc_message")
    words = ", ".join(map(str, message)) if isinstance(message, list) else str(message)
    return f"{result.get('exc_type')}: {words}"[:_LONGEST]
