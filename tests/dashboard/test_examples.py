"""The applications in `examples/dashboard/` work as their comments say. Each is served over a real store."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from a2wsgi import WSGIMiddleware
from starlette.testclient import TestClient

from tests.dashboard.trying import password_file, sign_in
from wheel_sched.store import Item, open_store

# imports four frameworks and starts a real server
pytestmark = [pytest.mark.real, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "dashboard"


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WHEEL_STORE", redis_url)
    with open_store(redis_url) as store:
        store.schedule([Item("order-42", 9_000_000_000_000, b"x", "orders")])
        yield


def client_of(app: Any) -> TestClient:
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def check(client: TestClient, right: str, **headers: str) -> None:
    """Check that the overview shows the stored item and this right of the visitor, and that its assets exist."""
    page = client.get("/wheel/", headers=headers)
    assert page.status_code == 200
    assert ">orders<" in page.text
    assert client.get("/wheel/assets/dashboard.css").status_code == 200
    assert client.get("/wheel/api/v1/session", headers=headers).json()["right"] == right
    assert client.get("/", headers=headers).status_code == 200


def test_fastapi_app() -> None:
    client = client_of(imported("fastapi_app").app)
    assert client.get("/wheel/").status_code == 401
    check(client, "operate", **{"X-Forwarded-User": "ada"})
    check(client, "read", **{"X-Forwarded-User": "bob"})
    assert 'sse-connect="/wheel/live"' in client.get("/wheel/", headers={"X-Forwarded-User": "bob"}).text


def test_starlette_app() -> None:
    """The example's dashboard is read-only, although the visitor has more rights. When the app ends, it closes the
    store.
    """
    module = imported("starlette_app")
    with client_of(module.app) as client:
        assert client.get("/wheel/").status_code == 401
        check(client, "read", Cookie="session=secret of ada")
        assert module.wheel.dashboard._home._store is not None
    assert module.wheel.dashboard._home._store is None


# WSGI in ASGI, which only the tests use
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flask_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEEL_USERS", str(password_file(tmp_path, ada="delete")))
    client = client_of(WSGIMiddleware(imported("flask_app").app))
    answer = client.get("/wheel/members")
    assert answer.headers["location"] == "/wheel/sign-in?to=%2Fmembers"
    client.base_url = client.base_url.join("/wheel/")
    assert sign_in(client, "ada").headers["location"] == "/wheel/"
    client.base_url = client.base_url.join("/")
    check(client, "operate")
    assert "sse-connect" not in client.get("/wheel/").text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_django_app() -> None:
    module = imported("django_app")

    def signed_in(environ: Any, start_response: Any) -> Any:
        user = environ.pop("HTTP_X_TEST_USER", "")
        return module.application({**environ, "REMOTE_USER": user}, start_response)

    client = client_of(WSGIMiddleware(signed_in))
    assert client.get("/wheel/").status_code == 401
    check(client, "operate", **{"X-Test-User": "ada"})
    assert client.get("/wheel", headers={"X-Test-User": "ada"}).status_code == 200
    assert client.get("/wheelbarrow").status_code == 404
    assert client.get("/wheel/", headers={"Host": "evil.example"}).status_code == 421


def test_every_example_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested
