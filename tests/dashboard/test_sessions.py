"""Signing in by form and by HTTP Basic, the cookie of a session, signing out, and wrong passwords."""

from __future__ import annotations

import base64
import time
from http.cookies import SimpleCookie
from pathlib import Path

import pytest

from tests.dashboard.trying import PASSWORDS, Site, hidden, password_file, sign_in, site
from wheel_sched.dashboard import PasswordFile
from wheel_sched.dashboard.ended_sessions import EndedSessions
from wheel_sched.dashboard.passwords import password_line, with_line
from wheel_sched.dashboard.sessions import COOKIE, SESSION_SECONDS, Throttle
from wheel_sched.dashboard.signing import TextSigner
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import DelayStore, open_store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return password_file(tmp_path, ada="delete", bob="read")


@pytest.fixture
def made(tmp_path: Path, file: Path) -> Site:
    return site(tmp_path, PasswordFile(file))


def test_a_stranger_sees_nothing(made: Site) -> None:
    """Pages redirect to the sign-in. API calls and live updates answer 401. No answer has a name, number or token."""
    for path in ("/", "/members", "/nowhere", "/things/ball"):
        answer = made.client.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/sign-in?to={path.replace('/', '%2F')}"
        assert answer.text == ""
    assert made.client.get("/live").status_code == 401
    call = made.client.get("/api/v1/session")
    assert call.status_code == 401
    assert call.headers["www-authenticate"].startswith("Basic ")
    assert set(call.json()) == {"error"}
    page = made.client.get("/sign-in")
    assert page.status_code == 200
    assert "Things" not in page.text
    assert "csrf" not in page.text


def test_the_form_signs_in_and_leads_back(made: Site) -> None:
    answer = sign_in(made.client, "ada", to="/members?kind=consumer")
    assert (answer.status_code, answer.headers["location"]) == (303, "/members?kind=consumer")
    assert made.client.get("/members").status_code == 200
    assert made.client.get("/api/v1/session").json()["name"] == "ada"


@pytest.mark.parametrize(
    ("base_url", "prefix", "path", "secure"),
    [
        ("http://localhost", "", "/", False),
        ("https://localhost", "", "/", True),
        ("https://localhost", "/tools/wheel", "/tools/wheel", True),
    ],
)
def test_the_flags_of_the_cookie(
    tmp_path: Path, file: Path, base_url: str, prefix: str, path: str, secure: bool
) -> None:
    """No script can read the cookie, no other site can send it, and other applications of the host do not get it."""
    made = site(tmp_path, PasswordFile(file), base_url=base_url, prefix=prefix)
    cookie = SimpleCookie(sign_in(made.client, "ada").headers["set-cookie"])[COOKIE]
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "strict"
    assert cookie["path"] == path
    assert bool(cookie["secure"]) is secure
    assert cookie["max-age"] == str(SESSION_SECONDS)
    assert cookie["domain"] == ""


def forged(made: Site) -> dict[str, str]:
    signer = made.app.dashboard.signer
    return {
        "empty": "",
        "made up": "ada.0000",
        "not ascii": "é.é",
        "another secret": TextSigner(b"y" * 32).sign("session", ["ada", "x"]),
        "a name alone": signer.sign("session", ["ada", ""]),
        "another purpose": made.app.dashboard.signer.sign("csrf", ["ada", "x"]),
        "nobody": signer.sign("session", ["eve", ""]),
    }


def test_a_forged_session_is_refused(made: Site) -> None:
    for kind, value in forged(made).items():
        answer = made.client.get("/api/v1/session", headers={"Cookie": f"{COOKIE}={value}".encode()})
        assert answer.status_code == 401, kind


def test_a_session_ends(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends after twelve hours, even if the browser keeps its cookie."""
    cookie = SimpleCookie(sign_in(made.client, "ada").headers["set-cookie"])[COOKIE].value
    made.client.cookies.clear()
    now, kept = time.time(), {"Cookie": f"{COOKIE}={cookie}"}
    for later, status in ((SESSION_SECONDS - 5, 200), (SESSION_SECONDS + 5, 401)):
        monkeypatch.setattr("wheel_sched.dashboard.signing.time.time", lambda later=later: now + later)
        assert made.client.get("/api/v1/session", headers=kept).status_code == status


def test_a_session_ends_with_the_password_and_with_the_user(made: Site, file: Path) -> None:
    """Someone who gets a new password, or leaves the file, is signed out everywhere."""
    sign_in(made.client, "ada")
    file.write_text(with_line(file.read_text("utf-8"), password_line("ada", "delete", "another password")), "utf-8")
    assert made.client.get("/api/v1/session").status_code == 401
    sign_in(made.client, "ada", "another password")
    assert made.client.get("/api/v1/session").status_code == 200
    file.write_text("# nobody\n", "utf-8")
    assert made.client.get("/api/v1/session").status_code == 401


def test_a_smaller_right_counts_at_once(made: Site, file: Path) -> None:
    """A visitor has the right that the file names now, and not the right at the beginning of the session."""
    sign_in(made.client, "ada")
    assert made.client.get("/api/v1/session").json()["right"] == "delete"
    file.write_text(file.read_text("utf-8").replace("ada:delete", "ada:read"), "utf-8")
    assert made.client.get("/api/v1/session").json()["right"] == "read"


def test_signing_out_ends_this_session_everywhere(tmp_path: Path, file: Path) -> None:
    """A copy of the session's cookie is refused, in other processes too. Other sessions of the user go on."""
    made, other = (
        site(tmp_path, PasswordFile(file), secret=b"s" * 32, store=store) for store in [open_store("memory:")] * 2
    )
    elsewhere, copied = (
        {"Cookie": f"{COOKIE}={SimpleCookie(sign_in(made.client, 'ada').headers['set-cookie'])[COOKIE].value}"}
        for _ in range(2)
    )
    answer = made.client.post("/sign-out", data={"csrf": hidden_of_sign_out(made)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert made.client.get("/").status_code == 303
    for process in (made, other):
        assert process.client.get("/api/v1/session", headers=copied).status_code == 401
        assert process.client.get("/api/v1/session", headers=elsewhere).status_code == 200


def test_without_its_store_a_dashboard_knows_the_sessions_that_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    """While the store does not answer, a visitor can sign out, and pages say that the store does not answer."""

    def away() -> DelayStore:
        raise StoreUnavailable("the store does not answer")

    ended = EndedSessions(away, SESSION_SECONDS)
    ended.end("one")
    assert ended.has("one")
    assert not ended.has("another")
    assert "dashboard.session_not_ended: StoreUnavailable: the store does not answer" in caplog.text


def hidden_of_sign_out(made: Site) -> str:
    page = made.client.get("/audit").text
    assert 'action="/sign-out"' in page
    return hidden(page)["csrf"][0]


def test_sessions_outlive_the_process_with_a_secret(tmp_path: Path, file: Path) -> None:
    """Two processes accept each other's sessions if they have the same secret, and only then."""
    first, second = (site(tmp_path, PasswordFile(file), secret=b"s" * 32) for _ in range(2))
    cookie = SimpleCookie(sign_in(first.client, "ada").headers["set-cookie"])[COOKIE].value
    kept = {"Cookie": f"{COOKIE}={cookie}"}
    assert second.client.get("/api/v1/session", headers=kept).status_code == 200
    assert site(tmp_path, PasswordFile(file)).client.get("/api/v1/session", headers=kept).status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"ada").decode(),
        "Basic " + base64.b64encode(b"ada:\xff\xfe").decode(),
        "Basic " + base64.b64encode(b"\xff:x").decode(),
        "Basic " + base64.b64encode(b"ada:" + b"x" * 60_000).decode(),
        "Bearer x",
        "Basic é".encode().decode("latin-1"),
    ],
    ids=lambda header: header[:16],
)
def test_a_wrong_authorization_is_refused(made: Site, header: str) -> None:
    answer = made.client.get("/api/v1/session", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_five_wrong_passwords_stop_the_sixth(made: Site) -> None:
    """After five wrong passwords even the right one is refused for a minute, by form and by HTTP Basic. This holds for
    the name and for the visitor's address.
    """
    for _ in range(5):
        assert sign_in(made.client, "ada", "wrong").status_code == 401
    assert sign_in(made.client, "ada").status_code == 401
    assert made.client.get("/api/v1/session", auth=("ada", PASSWORDS["ada"])).status_code == 401
    assert made.client.get("/api/v1/session", auth=("bob", PASSWORDS["bob"])).status_code == 401


def test_the_throttle_forgets_after_a_minute() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(5):
        assert not throttle.refuses("ada")
        throttle.wrong("ada", "address 1")
    assert throttle.refuses("ada", "address 2")
    assert throttle.refuses("bob", "address 1")
    assert not throttle.refuses("bob", "address 2")
    now[0] = 61.0
    assert not throttle.refuses("ada", "address 1")


def test_the_right_password_clears_the_count_and_the_memory_is_bounded() -> None:
    throttle = Throttle(lambda: 0.0)
    for _ in range(4):
        throttle.wrong("ada")
    throttle.right("ada")
    throttle.wrong("ada")
    assert not throttle.refuses("ada")
    for number in range(10_050):
        throttle.wrong(f"name {number}")
    assert len(throttle._wrong) == 10_000


@pytest.mark.parametrize(
    "body",
    [
        "",
        "name=ada",
        "password=x",
        "name=%FF&password=%FF%FE",
        "name=ada&password=%ED%A0%80",
        "x" * 100,
        "name=ä&password=x",
    ],
)
def test_a_form_that_is_none_does_not_sign_in(made: Site, body: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = made.client.post("/sign-in", content=body.encode(), headers=headers)
    assert answer.status_code in (400, 401)
    assert "set-cookie" not in answer.headers


def test_a_form_too_large_does_not_sign_in(made: Site) -> None:
    assert sign_in(made.client, "ada", "x" * 1_100_000).status_code == 413


def test_a_secret_must_be_long_enough() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, got: 5"):
        TextSigner(b"short")
