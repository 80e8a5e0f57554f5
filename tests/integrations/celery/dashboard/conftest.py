"""Fixtures: a dashboard with the Celery part, and tasks in a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from wheel_sched_celery.dashboard.part import PART
from wheel_sched_celery.message.headers import iso_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import encode_neutral

from tests.dashboard.closing import dashboards_end as dashboards_end
from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import DelayStore, open_store


@pytest.fixture
def memory() -> Iterator[DelayStore]:
    with open_store("memory:") as store:
        yield store


Hold = Callable[..., HeldTask]


@pytest.fixture
def hold(memory: DelayStore) -> Hold:
    """Stores a task as a producer does: `hold(id, in_ms=..., name=..., queue=...)`. Returns the stored task."""

    def hold(task_id: str, in_ms: int = 3_600_000, **changes: Any) -> HeldTask:
        eta_ms = memory.now_ms() + in_ms
        headers = {
            "lang": "py", "task": changes.get("name", "mail.send"), "id": task_id, "eta": iso_of(eta_ms),
            "retries": changes.get("retries", 0), "root_id": task_id, "parent_id": None, "origin": "gen1@host",
            "argsrepr": "('s3cret',)", "kwargsrepr": "{}", **changes.pop("headers", {}),
        }  # fmt: skip
        fields: dict[str, Any] = {
            "name": "mail.send", "retries": 0, "exchange": "", "routing_key": changes.get("queue", "celery"),
            "queue": "celery", "body": '[["s3cret"], {}, {"callbacks": null, "errbacks": null, "chain": null}]',
            "content_type": "application/json", "content_encoding": "utf-8",
            "properties": {"correlation_id": task_id}, "priority": 0, **changes,
        }  # fmt: skip
        task = HeldTask(task_id=task_id, eta_ms=eta_ms, headers=headers, **fields)
        memory.schedule([task.item(encode_neutral(task), 1_000)])
        return task

    return hold


Opener = Callable[..., Visiting]


@pytest.fixture
def open_visitor() -> Iterator[Opener]:
    """Opens dashboards: `open_visitor(store, settings, right=..., show_payloads=..., extras=...)`."""
    with ExitStack() as stack:

        def opened(store: DelayStore, settings: dict[str, Any], **config: Any) -> Visiting:
            given = DashboardConfig(**{"right": "delete", **config})
            loaded = load_settings(settings, env={})
            app = DashboardApp(store, loaded, everyone(given.right), config=given, parts=(CORE, PART))
            stack.callback(app.dashboard.close)
            return Visiting(app, PART)

        yield opened


@pytest.fixture
def visitor(open_visitor: Opener, memory: DelayStore) -> Visiting:
    """A visitor who may do everything, and sees no payloads. No application was given."""
    return open_visitor(memory, {"store": "memory:"})
