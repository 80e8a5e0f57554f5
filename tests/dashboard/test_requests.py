"""Wrong queries, unreadable bodies, a store that does not answer, and a callback that identifies visitors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from tests.dashboard.trying import Site, site
from wheel_sched.dashboard import Visitor
from wheel_sched.errors import ConfigError, StoreUnavailable

WRONG_QUERIES = (
    "/audit?limit=0",
    "/audit?limit=201",
    "/audit?limit=-1",
    "/audit?limit=1e3",
    "/audit?limit=%D9%A1",
    "/audit?limit=99999999999999999999999999",
    "/audit?limit=x",
    "/audit?cursor=x",
    "/audit?cursor=%00%FF",
    "/api/v1/audit?limit=0",
    "/api/v1/audit?limit=%FF",
    "/api/v1/audit?cursor=%F0%9F",
)


@pytest.mark.parametrize("path", WRONG_QUERIES)
def test_a_wrong_query_is_an_error_of_the_visitor(here: Site, path: str) -> None:
    """A wrong query gets 400 and an error that says what was expected. It is not ignored, and does not get 500."""
    answer = here.client.get(path)
    assert answer.status_code == 400
    if path.startswith("/api"):
        assert answer.json()["error"]["kind"] == "Rejected"


@pytest.mark.parametrize("path", ["/?a=%", "/?%FF=%FE", "/?a&&&=", "/?" + "a=b&" * 3000, "/members?kind=%00", "/?\xff"])
def test_what_no_page_asks_for_is_ignored(here: Site, path: str) -> None:
    assert here.client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'"x"', 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"name":' * 50_000, 400),
        (b'{"name": ' + b"9" * 5000 + b"}", 400),
        (b'{"name": ["' + b"x" * 1_100_000 + b'"]}', 413),
    ],
    ids=range(10),
)
def test_a_body_that_is_no_object_changes_nothing(here: Site, content: bytes, status: int) -> None:
    headers = {"X-CSRF-Token": here.csrf(), "Content-Type": "application/json"}
    answer = here.client.post("/api/v1/actions/paint/preview", content=content, headers=headers)
    assert answer.status_code == status
    assert "nothing was changed" in answer.json()["error"]["message"]
    assert here.things.previews == 0


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"\xff", 400), (b"&".join(b"name=a" for _ in range(2001)), 400), (b"name=" + b"x" * 1_100_000, 413)],
    ids=["no ascii", "too many fields", "too large"],
)
def test_a_form_that_is_none_changes_nothing(here: Site, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = here.client.post("/actions/paint", content=content, headers=headers)
    assert answer.status_code == status
    assert "nothing was changed" in answer.text
    assert here.things.previews == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_an_unknown_call_answers_in_json(here: Site, method: str) -> None:
    answer = here.client.request(method, "/api/v1/overview")
    assert answer.status_code in (404, 405)
    unknown = here.client.request(method, "/api/v1/nowhere")
    assert (unknown.status_code, unknown.json()["error"]["kind"]) == (404, "NotFound")


def test_while_the_store_is_away_pages_and_calls_say_so_and_then_recover(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store does not answer, pages and calls answer 503. They work again as soon as the store answers."""

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the server at redis://user:hunter2@host does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(here.app.dashboard.sampler, "now", away)
        patched.setattr("wheel_sched.store.Documents.newest", away)
        for path in ("/", "/audit", "/api/v1/overview", "/api/v1/audit"):
            answer = here.client.get(path)
            assert answer.status_code == 503
            assert "does not answer" in answer.text
            assert "hunter2" not in answer.text
        assert 'aria-label="Pages"' in here.client.get("/").text, "the other pages stay in reach"
        assert here.client.get("/api/v1/overview").json()["error"]["kind"] == "StoreUnavailable"
    for path in ("/", "/audit", "/api/v1/overview", "/api/v1/audit"):
        assert here.client.get(path).status_code == 200


def test_an_action_while_the_store_is_away_changes_nothing(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    body: dict[str, Any] = {"name": ["ball"], "colour": "green"}
    body["token"] = here.token("paint", body)

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr("wheel_sched.store.Documents.put", away)
        assert here.post("paint", body, key="the same key").status_code == 503
    assert here.things.colours["ball"] == "red"
    assert here.post("paint", body, key="the same key").json()["done"] == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_callback_says_who_the_visitor_is(tmp_path: Path, kind: str) -> None:
    """The callback gets the request. If it returns None, the visitor is not let in."""

    def known(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        return None if name is None else Visitor(name, "operate")

    async def asked(request: Request) -> Visitor | None:
        return known(request)

    made = site(tmp_path, known if kind == "sync" else asked)
    assert made.client.get("/").status_code == 401
    assert made.client.get("/api/v1/session").status_code == 401
    assert made.client.get("/live").status_code == 401
    session = made.client.get("/api/v1/session", headers={"X-User": "ada"}).json()
    assert (session["name"], session["right"]) == ("ada", "operate")


def test_a_callback_that_fails_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Request) -> Visitor:
        raise ConfigError("the directory of users is away")

    made = site(tmp_path, broken)
    for path in ("/", "/api/v1/session", "/live", "/things"):
        answer = made.client.get(path)
        assert answer.status_code == 503
        assert "directory" not in answer.text
    assert "the directory of users is away" in caplog.text


def test_an_unknown_right_is_an_error() -> None:
    with pytest.raises(ConfigError, match="read, operate or delete, got: 'admin'"):
        Visitor("ada", "admin")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "label"), [("/", "Overview"), ("/members", "Members"), ("/things", "Things"), ("/things/ball", "Things")]
)
@pytest.mark.parametrize("prefix", ["", "/wheel"])
def test_the_navigation_marks_the_present_page(tmp_path: Path, prefix: str, path: str, label: str) -> None:
    page = site(tmp_path, prefix=prefix).client.get(path).text
    assert page.count('aria-current="page"') == 1
    assert f'aria-current="page">{label}</a>' in page


def test_buttons_are_shown_only_to_those_who_may_use_them(tmp_path: Path) -> None:
    """The footer and the header say what a visitor may do."""
    made = site(tmp_path, right="read")
    assert "what you may do: read" in made.client.get("/").text
