"""Every answer has the headers that keep browsers safe, and the dashboard answers only to its own host names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.trying import Site, password_file, site
from wheel_sched.dashboard import PasswordFile
from wheel_sched.dashboard.security import LOOPBACK, host_of

EVERY_ANSWER = (
    ("GET", "/", 200),
    ("GET", "/members", 200),
    ("GET", "/api/v1/overview", 200),
    ("GET", "/assets/dashboard.css", 200),
    ("GET", "/assets/htmx.min.js", 200),
    ("GET", "/assets/gone.js", 404),
    ("GET", "/nowhere", 404),
    ("GET", "/api/v1/nowhere", 404),
    ("GET", "/audit?limit=0", 400),
    ("POST", "/", 405),
    ("POST", "/actions/paint", 403),
    ("POST", "/api/v1/actions/paint", 403),
)


@pytest.mark.parametrize(("method", "path", "status"), EVERY_ANSWER)
def test_every_answer_has_the_headers(here: Site, method: str, path: str, status: int) -> None:
    """No answer may be put into a frame of another site, be read as another type, or run a script from another server.
    This holds for pages, data, assets, errors and refusals.
    """
    answer = here.client.request(method, path)
    assert answer.status_code == status
    check_headers(answer.headers)


def check_headers(headers: object) -> None:
    policy = headers["content-security-policy"]  # type: ignore[index]
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http:" not in policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["form-action"] == "'self'"
    assert headers["x-frame-options"] == "DENY"  # type: ignore[index]
    assert headers["x-content-type-options"] == "nosniff"  # type: ignore[index]
    assert headers["referrer-policy"] == "same-origin"  # type: ignore[index]
    assert headers["cross-origin-opener-policy"] == "same-origin"  # type: ignore[index]


def test_a_crash_has_the_headers_and_no_traceback(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error answers 500 and shows nothing of its cause."""
    monkeypatch.setattr(here.app.dashboard.sampler, "now", lambda: 1 / 0)
    here.client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    answer = here.client.get("/")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    check_headers(answer.headers)


def test_pages_and_data_are_not_kept_in_caches(here: Site) -> None:
    for path in ("/", "/api/v1/overview", "/nowhere"):
        assert here.client.get(path).headers["cache-control"] == "no-store"
    assert here.client.get("/assets/dashboard.css").headers["cache-control"] == "public, max-age=3600"


def test_no_page_has_an_inline_script_or_style(tmp_path: Path) -> None:
    """The Content-Security-Policy forbids them, so a page with an inline script or style would not work."""
    visited = site(tmp_path, PasswordFile(password_file(tmp_path, ada="delete")))
    texts = [visited.client.get("/sign-in").text]
    open_to_all = site(tmp_path)
    texts += [open_to_all.client.get(path).text for path in ("/", "/members", "/audit", "/things", "/nowhere")]
    for text in texts:
        assert "<script>" not in text
        assert "<style" not in text
        assert ' style="' not in text
        assert "javascript:" not in text
        assert " on" + "click" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "127.0.0.1.nip.io", "", "["]
)
def test_another_host_name_is_refused(tmp_path: Path, host: str) -> None:
    """A page of another site cannot let its own name point to this address (DNS rebinding)."""
    visited = site(tmp_path, hosts=LOOPBACK)
    for path in ("/", "/api/v1/session", "/assets/dashboard.css"):
        answer = visited.client.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "csrf" not in answer.text
        check_headers(answer.headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8500", "127.0.0.1:1", "[::1]:8500"])
def test_its_own_host_names_are_answered(tmp_path: Path, host: str) -> None:
    assert site(tmp_path, hosts=LOOPBACK).client.get("/", headers={"Host": host}).status_code == 200


def test_the_name_in_a_host_header() -> None:
    assert [host_of(one) for one in ("a:1", "A", "[::1]:2", "[", "u@b", "")] == ["a", "a", "::1", "", "b", ""]


TRAVERSALS = (
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "%2e%2e%2fsigning.py",
    "..\\app.py",
    "..%5capp.py",
    "....//app.py",
    "%252e%252e%252fapp.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "dashboard.css%00.js",
    "%00",
    "%ff",
    "x" * 5000,
    ".",
    "",
)


@pytest.mark.parametrize("path", TRAVERSALS, ids=lambda path: path[:20])
def test_assets_are_only_those_of_the_folder(here: Site, path: str) -> None:
    """No name leads out of the folder of the assets."""
    answer = here.client.get(f"http://localhost/assets/{path}")
    assert answer.status_code == 404
    assert "import" not in answer.text
    assert "root:" not in answer.text
