"""A change is carried out only when it comes from a page of this dashboard (CSRF)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.trying import PASSWORDS, Site, password_file, sign_in, site
from wheel_sched.dashboard import PasswordFile, Visitor
from wheel_sched.dashboard.context import CSRF_SECONDS, CSRF_STEP_S
from wheel_sched.dashboard.signing import TextSigner

BODY = {"name": ["ball"], "colour": "green"}
FORM = {"name": "ball", "colour": "green"}


def check_nothing_changed(tried: Site) -> None:
    assert tried.things.previews == 0
    assert tried.things.colours == {"ball": "red", "box": "blue"}


FORGED: dict[str, Callable[[Site], str]] = {
    "missing": lambda _: "",
    "made up": lambda _: "made.up",
    "no ascii": lambda _: "é.ü",
    "no signature": lambda made: made.csrf().partition(".")[0],
    "changed signature": lambda made: made.csrf()[:-1] + ("0" if made.csrf()[-1] != "0" else "1"),
    "another visitor's": lambda made: made.app.dashboard.csrf_token(Visitor("eve", "delete")),
    "of another secret": lambda _: TextSigner(b"x" * 32).sign("csrf", "local"),
    "for another purpose": lambda made: made.app.dashboard.signer.sign("session", "local"),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_change_needs_the_visitors_own_token(here: Site, forged: Callable[[Site], str]) -> None:
    """Without a token, or with a forged token or that of another visitor, API and form change nothing."""
    token = forged(here)
    by_api = here.post("paint/preview", BODY, csrf=token.encode())  # type: ignore[arg-type]
    assert (by_api.status_code, by_api.json()["error"]["kind"]) == (403, "NotAllowed")
    by_form = here.client.post("/actions/paint", data={**FORM, "csrf": token})
    assert by_form.status_code == 403
    assert "nothing was changed" in by_form.text
    check_nothing_changed(here)


def test_a_token_ends(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day the token of a page is no longer accepted."""
    token = here.csrf()
    now = time.time()
    monkeypatch.setattr("wheel_sched.dashboard.signing.time.time", lambda: now + CSRF_SECONDS - 5)
    assert here.post("paint/preview", BODY, csrf=token).status_code == 200
    monkeypatch.setattr("wheel_sched.dashboard.signing.time.time", lambda: now + CSRF_SECONDS + CSRF_STEP_S + 5)
    assert here.post("paint/preview", BODY, csrf=token).status_code == 403


ELSEWHERE = (
    {"Origin": "https://evil.example"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost:8080"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
def test_a_page_of_another_site_is_refused(here: Site, headers: dict[str, str]) -> None:
    """A request from a page of another site is refused, even if its token is right."""
    assert here.post("paint/preview", BODY, **headers).status_code == 403
    by_form = here.client.post("/actions/paint", data={**FORM, "csrf": here.csrf()}, headers=headers)
    assert by_form.status_code == 403
    check_nothing_changed(here)


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {}], ids=str)
def test_its_own_pages_and_programs_are_accepted(here: Site, headers: dict[str, str]) -> None:
    assert here.post("paint/preview", BODY, **headers).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"]
)
def test_only_json_is_read_as_json(here: Site, kind: str) -> None:
    """A request whose content type is not JSON is refused, because a form of another site cannot send JSON."""
    headers = {"X-CSRF-Token": here.csrf(), "Content-Type": kind}
    answer = here.client.post("/api/v1/actions/paint/preview", content='{"name": ["ball"]}', headers=headers)
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]
    check_nothing_changed(here)


def test_signing_in_and_out_need_a_page_of_the_dashboard(tmp_path: Path) -> None:
    """Another site can neither sign a visitor in under its own name nor sign a visitor out."""
    made = site(tmp_path, PasswordFile(password_file(tmp_path, ada="delete")))
    refused = sign_in(made.client, "ada", Origin="https://evil.example")
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers
    sign_in(made.client, "ada")
    assert made.client.post("/sign-out", data={"csrf": "x.y"}).status_code == 403
    assert made.client.get("/").status_code == 200


def test_a_reading_request_changes_nothing(here: Site) -> None:
    """No action can be requested with GET, so a link or a picture cannot start an action."""
    for path in ("/actions/paint?name=ball", "/api/v1/actions/paint?name=ball", "/api/v1/actions/paint/preview"):
        assert here.client.get(path).status_code in (404, 405)
    check_nothing_changed(here)


def test_the_token_of_one_user_is_none_of_another(tmp_path: Path) -> None:
    users = PasswordFile(password_file(tmp_path, ada="operate", bob="operate"))
    made = site(tmp_path, users)
    token = made.csrf(auth=("ada", PASSWORDS["ada"]))
    sent: dict[str, Any] = {"json": BODY, "headers": {"X-CSRF-Token": token}}
    url = "/api/v1/actions/paint/preview"
    assert made.client.post(url, auth=("bob", PASSWORDS["bob"]), **sent).status_code == 403
    assert made.client.post(url, auth=("ada", PASSWORDS["ada"]), **sent).status_code == 200


def test_a_page_does_not_show_its_token_to_other_sites(here: Site) -> None:
    """No answer has a CORS header that lets a page of another origin read it."""
    answer = here.client.get("/api/v1/session", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
