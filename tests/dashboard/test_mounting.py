"""The dashboard inside another application: FastAPI, Starlette, Flask and Django, below a path of its own."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from retry_topic import Message
from retry_topic.message.encoding import encode_body
from tests.dashboard.trying import PASSWORDS, password_file
from wheel_sched.config import given_settings
from wheel_sched.dashboard import (
    DashboardApp,
    DashboardConfig,
    DashboardPart,
    PasswordFile,
    dashboard,
    dashboard_wsgi,
    everyone,
)
from wheel_sched.dashboard.app import installed_parts
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.errors import ConfigError, StoreUnavailable
from wheel_sched.extensions import resolve
from wheel_sched.store import DelayStore, Item, open_store


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as made:
        yield made


def in_fastapi(app: DashboardApp) -> Any:
    outer = FastAPI()
    outer.mount("/tools/wheel", app)
    return TestClient(outer, base_url="http://localhost", follow_redirects=False)


def in_starlette(app: DashboardApp) -> Any:
    routes = [Mount("/tools", routes=[Mount("/wheel", app)])]
    return TestClient(Starlette(routes=routes), base_url="http://localhost", follow_redirects=False)


def behind_a_proxy(app: DashboardApp) -> Any:
    """An application behind a proxy that cuts off /tools. The root path is /tools, as with FastAPI's `root_path`."""
    outer = Starlette(routes=[Mount("/wheel", app)])

    async def rooted(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/tools")
        await outer({**scope, "path": path, "raw_path": path.encode(), "root_path": "/tools"}, receive, send)

    return TestClient(rooted, base_url="http://localhost", follow_redirects=False)


@pytest.mark.parametrize("mounted", [in_fastapi, in_starlette, behind_a_proxy])
def test_all_addresses_are_below_the_path_of_the_mount(tmp_path: Path, store: DelayStore, mounted: Any) -> None:
    """Every address that a page names is below the path of the mount, and exists."""
    store.schedule([Item("id", 0, b"x", "orders")])
    client = mounted(dashboard(store, access=PasswordFile(password_file(tmp_path, ada="delete")), right="delete"))
    turned_away = client.get("/tools/wheel/members?kind=x")
    assert turned_away.status_code == 303
    assert turned_away.headers["location"] == "/tools/wheel/sign-in?to=%2Fmembers%3Fkind%3Dx"
    page = client.get("/tools/wheel/sign-in")
    assert 'action="/tools/wheel/sign-in?to=%2F"' in page.text
    body = {"name": "ada", "password": PASSWORDS["ada"]}
    signed_in = client.post("/tools/wheel/sign-in?to=/members", data=body)
    assert signed_in.headers["location"] == "/tools/wheel/members"
    assert "Path=/tools/wheel;" in signed_in.headers["set-cookie"]
    overview = client.get("/tools/wheel/")
    assert overview.status_code == 200
    named = set(re.findall(r'(?:href|src|action|sse-connect)="([^"#]+)"', overview.text))
    assert "/tools/wheel/live" in named
    for address in named:
        assert address.startswith("/tools/wheel/"), address
        if "/live" not in address and not address.endswith("/sign-out"):
            assert client.get(address).status_code == 200, address
    assert 'aria-current="page">Overview' in overview.text
    servers = client.get("/tools/wheel/api/v1/openapi.json").json()["servers"]
    assert servers == [{"url": "/tools/wheel/api/v1"}]


def test_a_path_that_only_begins_like_the_mount_is_not_cut(store: DelayStore) -> None:
    client = TestClient(dashboard(store, access=everyone("read")), base_url="http://localhost", root_path="/me")
    assert 'aria-current="page">Members' in client.get("/members").text


def test_it_is_read_only_and_without_payloads_by_default(store: DelayStore) -> None:
    app = dashboard(store, access=everyone("delete"))
    assert app.dashboard.config.right == "read"
    assert not app.dashboard.config.show_payloads
    client = TestClient(app, base_url="http://localhost")
    session = client.get("/api/v1/session").json()
    assert session["right"] == "read"
    store.schedule([Item("m.1", 9_000_000_000_000, encode_body(Message("orders", b"hunter2", b"k-7")), "orders")])
    for path in ("/items/m.1", "/api/v1/items/m.1"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "hunter2" not in answer.text
        assert "aHVudGVyMg" not in answer.text  # the same in base64
        assert "k-7" not in answer.text
        assert 'action="/actions/' not in answer.text
    headers = {"X-CSRF-Token": session["csrf_token"], "Idempotency-Key": "a key of mine"}
    for address, more in (("hold/preview", {}), ("hold", {"token": "t"})):
        refused = client.post(f"/api/v1/actions/{address}", json={"ids": ["m.1"], **more}, headers=headers)
        assert refused.status_code == 403, refused.text
    assert store.counts().total("held") == 0
    app.close()


def test_it_reads_neither_a_file_nor_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: DelayStore
) -> None:
    """An application has its own settings, so the settings of the command line are not read."""
    monkeypatch.chdir(tmp_path)
    Path("wheel-sched.toml").write_text('namespace = "other"\nbroken\n', "utf-8")
    monkeypatch.setenv("WHEEL_SCHED_NAMESPACE", "another")
    app = dashboard("redis://localhost:1/0", access=everyone("read"), namespace="mine", shards=3)
    assert app.dashboard.loaded.settings.namespace == app.dashboard.namespace == "mine"
    assert app.dashboard.loaded.settings.shards == 3
    assert app.dashboard.loaded.origins["namespace"] == "argument"
    assert dashboard(store, access=everyone("read")).dashboard.store is store


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"home": "memory:"}, "open a store in memory first"),
        ({"home": 7}, "expected home to be the address"),
        ({"home": "redis://h", "right": "admin"}, "read, operate or delete, got: 'admin'"),
        ({"home": "redis://h", "durability": "sure"}, "expected durability to be"),
        ({"home": "redis://h", "shards": 0}, "expected shards to be"),
        ({"home": "redis://h", "settings": {"kafak": "x"}}, "unknown setting 'kafak'"),
        ({"home": "redis://h", "secret": b"short"}, "at least 16 bytes"),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        dashboard(access=everyone("read"), **arguments)


def test_given_settings_report_every_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        given_settings({"durability": "sure", "shards": "many", "stroe": "x"})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(("given", "origin"), [({}, "default"), ({"namespace": "orders"}, "argument")])
def test_a_namespace_that_nobody_names_is_the_default(given: dict[str, str], origin: str) -> None:
    """Without a namespace in the settings, each package uses its own default, such as "apscheduler" for jobs."""
    app = dashboard("redis://127.0.0.1:1/0", access=everyone("read"), **given)
    loaded = app.dashboard.loaded
    assert loaded.origins["namespace"] == origin
    assert loaded.settings.namespace == given.get("namespace", "wheel")


def test_an_application_starts_without_its_store(monkeypatch: pytest.MonkeyPatch, store: DelayStore) -> None:
    """While the store does not answer, the dashboard says so. When the store answers, the dashboard opens it once. It
    closes the store at the end.
    """
    closed = []
    here = [False]

    def opened(_: object) -> Any:
        if not here[0]:
            raise StoreUnavailable("no connection")

        @contextlib.contextmanager
        def block() -> Iterator[DelayStore]:
            yield store
            closed.append(1)

        return block()

    monkeypatch.setattr("wheel_sched.dashboard.lazy_store.opened", opened)
    app = dashboard("redis://localhost:6379/0", access=everyone("read"))
    client = TestClient(app, base_url="http://localhost")
    for path in ("/", "/members", "/api/v1/overview"):
        assert client.get(path).status_code == 503
        assert "no connection" in client.get(path).text
    here[0] = True
    assert client.get("/").status_code == 200
    assert client.get("/members").status_code == 200
    app.close()
    app.close()
    assert closed == [1]


@pytest.mark.real
def test_a_namespace_that_does_not_exist_is_not_created(redis_url: str) -> None:
    """For a mistyped namespace, the dashboard shows an error. When a program has made the namespace, it is shown."""
    app = dashboard(redis_url, access=everyone("read"), namespace="mine")
    client = TestClient(app, base_url="http://localhost")
    answer = client.get("/")
    assert answer.status_code == 503
    assert "there is no namespace" in answer.text
    with open_store(redis_url, namespace="mine", shards=2):
        pass
    assert client.get("/").status_code == 200
    assert client.get("/api/v1/overview").json()["shards"] == 2
    app.close()


def wsgi(app: Any, path: str, **environ: str) -> tuple[str, dict[str, str], str]:
    """Send a GET request to a WSGI application."""
    got: list[Any] = []
    asked = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "/wheel",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        **environ,
    }
    body = b"".join(app(asked, lambda status, headers, *_: got.append((status, dict(headers)))))
    status, headers = got[0]
    return status, headers, body.decode()


def test_under_wsgi_the_pages_do_without_live_updates(store: DelayStore) -> None:
    """A stream would hold a thread of the server for each open page."""
    app = dashboard_wsgi(store, access=everyone("read"))
    status, headers, page = wsgi(app, "/members")
    assert status.startswith("200")
    assert headers["x-frame-options"] == "DENY"
    assert 'href="/wheel/assets/dashboard.css"' in page
    assert "sse-connect" not in page
    assert wsgi(app, "/live/members")[0].startswith("404")
    assert "sse-connect" in wsgi(dashboard_wsgi(store, access=everyone("read"), live=True), "/members")[2]


def test_under_wsgi_a_path_that_is_no_text_is_not_found(store: DelayStore) -> None:
    app = dashboard_wsgi(store, access=everyone("read"))
    assert wsgi(app, "/caf\xe9")[0].startswith("404")


def test_under_wsgi_wrong_passwords_are_counted_by_address(store: DelayStore) -> None:
    seen = []
    app = dashboard_wsgi(store, access=lambda request: seen.append(request.client.host))
    assert wsgi(app, "/", REMOTE_ADDR="10.0.0.7")[0].startswith("401")
    assert seen == ["10.0.0.7"]


@pytest.mark.parametrize("right", ["read", "operate"])
def test_a_mounted_dashboard_starts_its_parts_with_the_first_request(store: DelayStore, right: Any) -> None:
    """A mounted dashboard does not learn when the server starts, so the first request starts the background work of its
    parts. A read-only dashboard starts none.
    """
    started = threading.Event()
    part = DashboardPart("one", started=lambda _: started.set())
    config = DashboardConfig(right=right)
    app = DashboardApp(store, given_settings({}), everyone(right), config=config, parts=(CORE, part), mounted=True)
    outer = TestClient(Starlette(routes=[Mount("/wheel", app)]), base_url="http://localhost")
    assert not started.is_set()
    assert outer.get("/wheel/").status_code == 200
    if right == "read":
        assert not [one for one in threading.enumerate() if one.name == "dashboard"]
        assert not started.is_set()
    else:
        assert started.wait(20)
    app.close()


@pytest.mark.parametrize(("package", "left_out"), [("celery", True), ("wheel_sched.typo", False)])
def test_a_part_without_its_framework_is_left_out(
    monkeypatch: pytest.MonkeyPatch, package: str, left_out: bool
) -> None:
    """If a framework such as Celery is not installed, its pages are left out. A missing module of this project is an
    error.
    """

    def absent(target: str) -> Any:
        if "celery" in target:
            raise ModuleNotFoundError("No module", name=package)
        return resolve(target)

    before = {part.name for part in installed_parts()}
    monkeypatch.setattr("wheel_sched.dashboard.app.resolve", absent)
    if left_out:
        assert len(installed_parts()) == len(before) - 1
    else:
        with pytest.raises(ModuleNotFoundError):
            installed_parts()
