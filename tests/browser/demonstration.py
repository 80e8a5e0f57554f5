"""A served dashboard over a seeded namespace of a running server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic import Connection, connect
from tests.browser.seeding import seed
from tests.browser.serving import served
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, DashboardPart, Page, everyone
from wheel_sched.dashboard.app import installed_parts
from wheel_sched.extensions import installed


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A running dashboard: its address without a slash at the end, its application, and its data."""

    url: str
    app: DashboardApp
    connection: Connection

    @property
    def pages(self) -> list[Page]:
        return [page for part in self.app.dashboard.parts for page in part.pages]


def parts() -> Sequence[DashboardPart]:
    """All parts: the core's, and those of the packages in this tree."""
    return installed_parts()


@contextlib.contextmanager
def demonstration(
    store: str, namespace: str, *, access: Any = None, port: int = 0, hostile: bool = True, **config: Any
) -> Iterator[Demonstration]:
    """Seed a namespace and serve its dashboard, until the end of the block.

    Args:
        store: the address of the server.
        namespace: a namespace that does not exist.
        access: who may do what. Defaults to everybody everything.
        port: the port of the dashboard. Defaults to 0: a free one.
        hostile: whether hostile texts are among the data. Defaults to True.
        config: fields of `DashboardConfig`. Defaults to every right, payloads shown.
    """
    loaded = load_settings({"store": store, "namespace": namespace}, env={}, kinds=installed().settings)
    with connect(store, namespace=namespace) as connection:
        seed(connection, hostile=hostile)
        app = DashboardApp(
            connection.store,
            loaded,
            access or everyone("delete", "ada"),
            config=DashboardConfig(**{"right": "delete", "show_payloads": True, "title": "shop", **config}),
            parts=tuple(parts()),
        )
        try:
            with served(app, port) as server:
                yield Demonstration(server.url, app, connection)
        finally:
            app.dashboard.close()
