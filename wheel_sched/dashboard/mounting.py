"""`dashboard()` and `dashboard_wsgi()`: the dashboard as a part of another application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from wheel_sched.config import Settings, given_settings
from wheel_sched.dashboard.app import DashboardApp
from wheel_sched.dashboard.context import DashboardConfig
from wheel_sched.dashboard.lazy_store import LazyStore
from wheel_sched.dashboard.passwords import PasswordFile
from wheel_sched.dashboard.rights import RIGHTS, Authenticate, Right
from wheel_sched.errors import ConfigError
from wheel_sched.extensions import installed
from wheel_sched.store import DelayStore

NAMESPACE = Settings().namespace
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def dashboard(
    home: str | DelayStore,
    *,
    access: Authenticate | PasswordFile,
    namespace: str = NAMESPACE,
    shards: int | None = None,
    durability: str = "everysec",
    replicas: int = 1,
    right: Right = "read",
    show_payloads: bool = False,
    hosts: Collection[str] | None = None,
    secret: bytes | None = None,
    title: str = "wheel-sched",
    purgatories: Mapping[str, Any] | None = None,
    timers: Mapping[str, Any] | None = None,
    celery_app: Any = None,
    settings: Mapping[str, Any] | None = None,
    live: bool = True,
    extras: Mapping[str, Any] | None = None,
) -> DashboardApp:
    """Make the dashboard as an ASGI application, to mount in another one.

    The dashboard opens the store when a page first needs it. So an application with a dashboard starts even if the
    store is down, and each of its processes has a connection of its own. While the store does not answer, the pages say
    so with status 503. The dashboard does not create a namespace. It does not read wheel-sched.toml or WHEEL_SCHED_*,
    because an application has its own settings.

    Args:
        home: the address of the store ("redis://...", "rediss://...", "unix://..." or "embedded:FOLDER"), or an open
            store, which the caller closes.
        access: who the visitors are: a `PasswordFile`, `everyone("read")`, or a function that takes a request and
            returns its `Visitor`, or None for an unknown one.
        namespace: the namespace. Defaults to "wheel". An open store has its own.
        shards: the shard count. Defaults to None: that of the namespace.
        durability: what a write of the dashboard waits for, see docs/guarantees.md. Defaults to "everysec".
        replicas: how many replicas confirm at durability "replicated". Defaults to 1.
        right: the greatest right of any visitor: "read", "operate" or "delete". Defaults to "read".
        show_payloads: whether payloads, keys and header values are shown. Defaults to False.
        hosts: the host names under which the dashboard answers. Defaults to None: all; the application checks them.
        secret: at least 16 bytes that sign sessions and previews. All processes that serve this dashboard need the
            same. Defaults to None: a random one, for a single process.
        title: stands in the title of each page. Defaults to "wheel-sched".
        purgatories: purgatories of this process to show, by name. Defaults to none.
        timers: timers of this process to show, by name. Defaults to none.
        celery_app: the Celery application, for pages and actions that need it. Defaults to None.
        settings: settings of the installed packages, by the names that they have in wheel-sched.toml, such as
            `{"kafka": "broker:9092"}`. Defaults to none.
        live: whether pages update themselves. Defaults to True.
        extras: objects that the parts of installed packages use, such as `{"broker": broker}`. Defaults to none.

    Returns:
        The application. Its `close()` closes what it has opened.

    Raises:
        ConfigError: an argument is wrong. Nothing was opened.
    """
    if right not in RIGHTS:
        raise ConfigError(f"expected right to be read, operate or delete, got: {right!r}; nothing was opened")
    loaded = given_settings(
        {**_place(home, namespace, shards), "durability": durability, "replicas": replicas, **(settings or {})},
        kinds=installed().settings,
    )
    config = DashboardConfig(
        right=right,
        show_payloads=show_payloads,
        title=title,
        purgatories=purgatories or {},
        timers=timers or {},
        extras={**(extras or {}), **({} if celery_app is None else {"celery_app": celery_app})},
    )
    store = home if isinstance(home, DelayStore) else LazyStore(loaded.settings)
    return DashboardApp(store, loaded, access, config=config, hosts=hosts, secret=secret, live=live, mounted=True)


def _place(home: str | DelayStore, namespace: str, shards: int | None) -> dict[str, Any]:
    """The settings that name the store."""
    if isinstance(home, DelayStore):
        return {"store": "memory:", "namespace": home.namespace, "shards": home.shards}
    if not isinstance(home, str) or home == "memory:":
        raise ConfigError(
            f"expected home to be the address of a server, embedded:FOLDER or an open store, got: {home!r:.100}; "
            "nothing was opened; open a store in memory first, and pass the store"
        )
    # the default namespace counts as "not set", so each package uses its own default namespace
    return {"store": home, "namespace": None if namespace == NAMESPACE else namespace, "shards": shards}


def dashboard_wsgi(home: str | DelayStore, *, live: bool = False, **options: Any) -> WsgiApp:
    """Make the dashboard as a WSGI application, for Flask and Django. It runs an event loop in a thread of its own.

    Args:
        home: see `dashboard`.
        live: whether pages update themselves. Each open page then occupies a thread of the WSGI server, so the server
            needs many threads. Defaults to False: a page shows the state at the time of its request.
        options: see `dashboard`.

    Raises:
        ConfigError: an argument is wrong, or the package a2wsgi is not installed. Nothing was opened.
    """
    try:
        from a2wsgi import ASGIMiddleware
    except ImportError as error:
        raise ConfigError(
            'dashboard_wsgi needs the package a2wsgi: pip install "wheel-sched[dashboard]"; nothing was opened'
        ) from error
    app: Any = dashboard(home, live=live, **options)
    inner: Any = ASGIMiddleware(app)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1").decode()
        except ValueError:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is no such page\n"]
        # Wrong passwords are counted by the client's address. a2wsgi passes the address on only with a port.
        answer: Iterable[bytes] = inner({"REMOTE_PORT": "0", **environ}, start_response)
        return answer

    return application
