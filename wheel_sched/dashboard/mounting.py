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

    It opens the store when it is first needed: an application with a dashboard starts although the store is away, and
    each of its processes has a connection of its own. Until then, and whenever the store is away, the pages say so with
    status 503. A namespace that does not exist is not created. It reads neither wheel-sched.toml nor WHEEL_SCHED_*: an
    application has its own settings.

    Args:
        home: the address of the store ("redis://...", "rediss://...", "unix://..." or "embedded:FOLDER"), or an open
            store, which stays the caller's.
        access: who the visitors are: a function from a request to a `Visitor` (or None: nobody known), a
            `PasswordFile`, or `everyone("read")`.
        namespace: the namespace. Defaults to "wheel". An open store has its own.
        shards: the shard count. Defaults to None: that of the namespace.
        durability: see docs/guarantees.md; what the dashboard changes is kept at this level. Defaults to "everysec".
        replicas: how many replicas confirm at durability "replicated". Defaults to 1.
        right: the greatest right of any visitor: "read", "operate" or "delete". Defaults to "read".
        show_payloads: whether payloads, keys and header values are shown. Defaults to False.
        hosts: the host names under which it answers. Defaults to None: all; the application checks them.
        secret: at least 16 bytes that sign sessions and previews. All processes that serve this dashboard need the
            same. Defaults to None: a random one, for a single process.
        title: stands in the title of each page. Defaults to "wheel-sched".
        purgatories: purgatories of this process to show, by name. Defaults to none.
        timers: timers of this process to show, by name. Defaults to none.
        celery_app: the Celery application, for what needs it. Defaults to None.
        settings: settings of the installed packages, by the names that they have in wheel-sched.toml, such as
            `{"kafka": "broker:9092"}`. Defaults to none.
        live: whether pages update themselves. Defaults to True.
        extras: what the parts of installed packages use besides, such as `{"broker": broker}`. Defaults to none.

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
            "nothing was opened; a store in memory must be given open"
        )
    # the default is not passed on: the packages then choose the namespaces that they have without settings
    return {"store": home, "namespace": None if namespace == NAMESPACE else namespace, "shards": shards}


def dashboard_wsgi(home: str | DelayStore, *, live: bool = False, **options: Any) -> WsgiApp:
    """Make the dashboard as a WSGI application, for Flask and Django. It runs on an event loop in a thread of its own.

    Args:
        home: see `dashboard`.
        live: whether pages update themselves. An open page then holds a thread of the WSGI server, so it needs a server
            with many threads. Defaults to False: pages show the state of the moment when they were asked for.
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
        # without a port a2wsgi passes no address on, and wrong passwords are counted by address
        answer: Iterable[bytes] = inner({"REMOTE_PORT": "0", **environ}, start_response)
        return answer

    return application
