"""A served dashboard over a seeded database of a running server."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from retry_topic import Connection, connect
from tests.browser.seeding import POLICIES, seed
from tests.browser.seeding_frameworks import celery_with_tasks, seed_jobs
from tests.browser.serving import served
from wheel_sched.dashboard import DashboardApp, DashboardPage, dashboard, everyone
from wheel_sched.dashboard.app import installed_parts

PARTS = installed_parts()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A running dashboard: its address without a slash at the end, its application, and its data."""

    url: str
    app: DashboardApp
    connection: Connection

    @property
    def pages(self) -> list[DashboardPage]:
        return [page for part in self.app.dashboard.parts for page in part.pages]


@contextlib.contextmanager
def demonstration(
    server: str, database: int, *, access: Any = None, port: int = 0, hostile: bool = True, **options: Any
) -> Iterator[Demonstration]:
    """Fill a database and serve its dashboard, until the end of the block.

    Args:
        server: the address of the server, with a Unix socket.
        database: the number of the database, which is first emptied.
        access: who may do what. Defaults to all rights for everybody.
        port: the port of the dashboard. Defaults to 0: a free one.
        hostile: whether hostile texts are among the data. Defaults to True.
        options: the options of `dashboard`. They override the options that this function chooses.
    """
    store = server.replace("?db=0", f"?db={database}")
    with contextlib.ExitStack() as stack:
        with redis.Redis.from_url(store) as client:
            client.flushdb()
        connection = stack.enter_context(connect(store))
        seed(connection, hostile=hostile)
        seed_jobs(store, hostile=hostile)
        celery = stack.enter_context(celery_with_tasks(store, hostile=hostile))
        policies = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "policies.toml"
        policies.write_text(POLICIES, "utf-8")
        given = {"right": "delete", "show_payloads": True, "title": "shop", "settings": {"policies": str(policies)}}
        app = dashboard(store, access=access or everyone("delete", "ada"), celery_app=celery, **{**given, **options})
        stack.callback(app.close)
        yield Demonstration(stack.enter_context(served(app, port)).url, app, connection)
