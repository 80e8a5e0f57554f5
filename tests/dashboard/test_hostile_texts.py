"""Ids, topics, names and errors come from outside. No such text is run as code, forges a page, or makes a page fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dashboard.trying import PASSWORDS, Site, action_forms, password_file, sign_in, site
from wheel_sched.dashboard import PasswordFile, everyone
from wheel_sched.dashboard.addresses import exact, is_local
from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.dashboard.rendering import query, quote_path, shown, shown_lines
from wheel_sched.store import Item, Member, Members

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "end of an element": "</ul></main></body>",
    "entity": "&lt;b&gt; &#60;",
    "template": "{{ 7*7 }}{% raw %}{{ config }}${7*7}#{7*7}",
    "ansi": "\x1b[2J\x1b]0;title\x07",
    "bidi": "abc\u202egnp.exe\u2066\u200f",
    "zero width": "a\u200bb\ufeff",
    "nul": "a\0b",
    "lines": "a\r\nb\nc\u2028d\x85e",
    "invalid UTF-8": b"caf\xe9 \xff\xfe".decode("utf-8", "surrogateescape"),
    "lone surrogate": "a\ud83d",
    "percent": "100%41 %2F %00 %",
    "path": "../../etc/passwd",
    "address": "//evil.example/?a=b&c=d#e",
    "question": "a?b=c&d#e;f",
    "blank": "  ",
    "dots": "..",
    "long": "x" * 10_000_000,
}
UNSAFE = re.compile("[\0\x1b\x07\x80-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\r]")

every_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def check_page(page: str, status: int = 200) -> None:
    assert UNSAFE.search(page) is None
    assert "<script>alert" not in page
    assert 'onmouseover="' not in page
    assert page.count("</main>") == page.count("</body>") == 1
    assert len(page) < 200_000


def fill(made: Site, text: str) -> None:
    """Store the text in each place that the core's pages show."""
    cut = text[:2000]
    member = Member(cut or "x", cut, topics=(cut,), takes_in=(cut,), holds={cut: 1}, host=cut, pid=1, version=cut)
    Members(made.store).announce(member, 60_000)
    topic = "".join(text.encode("utf-8", "replace").decode()[:200].replace("\0", "").splitlines())
    made.store.schedule([Item("id", 0, b"x", topic)])
    log = AuditLog(made.store)
    log.end(log.begin(text, "paint", text, {"name": [text]}), text)
    made.things.colours = {cut: cut}


@every_text
def test_pages_show_the_text_and_nothing_else(here: Site, text: str) -> None:
    """A hostile text is shown as text, with unsafe characters as escapes. If it is long, it is cut."""
    fill(here, text)
    for path in ("/", "/members", "/audit", "/things"):
        answer = here.client.get(path)
        assert answer.status_code == 200, path
        check_page(answer.text)
    if text.startswith("{{"):
        assert "{{ 7*7 }}" in answer.text
        assert "49" not in re.sub(r'value="[^"]*"', "", answer.text)


@every_text
def test_data_has_the_text_exactly(here: Site, text: str) -> None:
    """JSON is in ASCII, so a text that is not valid UTF-8 arrives unchanged too."""
    log = AuditLog(here.store)
    log.end(log.begin("ada", "paint", text, {}), "done")
    answer = here.client.get("/api/v1/audit")
    assert answer.content.isascii()
    assert json.loads(answer.content)["entries"][0]["words"] == text[:500]


ADDRESSABLE = {
    name: text for name, text in HOSTILE.items() if name not in ("long", "lone surrogate", "dots", "percent")
}


def test_bytes_of_a_text_with_other_surrogates_stay() -> None:
    """Only a surrogate that stands for no byte becomes `?` in a link; the others become their bytes."""
    assert quote_path("caf\udce9 \ud83d") == "caf%E9%20%3F"
    assert query({"name": "caf\udce9 \ud83d"}) == "?name=caf%E9+%3F"


@pytest.mark.parametrize("prefix", ["", "/tools/wheel"])
@pytest.mark.parametrize("text", ADDRESSABLE.values(), ids=ADDRESSABLE)
def test_links_and_buttons_lead_to_the_thing(tmp_path: Path, text: str, prefix: str) -> None:
    """A link to a thing finds it, and a button changes it, whatever bytes its name has."""
    made = site(tmp_path, prefix=prefix)
    made.things.colours = {text: "red"}
    page = made.client.get("/things").text
    link = re.search(rf'href="{prefix}(/things/[^"]*)"', page)
    assert link is not None
    assert link[1] == f"/things/{quote_path(text)}"
    one = made.client.get(f"http://localhost{link[1]}")
    assert one.status_code == 200
    (form,) = action_forms(one.text)
    live = re.search(r'sse-connect="([^"]*)"', one.text)
    assert live is not None
    assert live[1].startswith(f"{prefix}/live/things/")
    assert live[1].isascii()
    preview = made.client.post("/actions/scrap", data={**form})
    assert preview.status_code == 200, preview.text
    assert is_local(form["back"][0])
    (confirmed,) = action_forms(preview.text)
    assert "1 things changed" in made.client.post("/actions/scrap", data=confirmed).text
    assert made.things.colours == {}


@pytest.mark.parametrize("text", ADDRESSABLE.values(), ids=ADDRESSABLE)
def test_the_api_finds_the_thing_by_path_and_query(here: Site, text: str) -> None:
    here.things.colours = {text: "red"}
    answer = here.client.get(f"http://localhost/api/v1/things/{quote_path(text)}{query({'asked': [text, 'b']})}")
    assert answer.json() == {"name": text, "colour": "red", "asked": [text, "b"]}


@every_text
def test_errors_and_unknown_pages_show_the_text_safely(here: Site, text: str) -> None:
    """A hostile text in the request is shown with unsafe characters escaped."""
    part = quote(text[:4000].encode("utf-8", "replace"))
    for path in (
        f"/x{part}",
        f"/audit?limit={part}",
        f"/audit?cursor={part}",
        f"/members?kind={part}",
        f"/?{part}={part}",
    ):
        answer = here.client.get(f"http://localhost{path}")
        assert answer.status_code < 500
        check_page(answer.text)
    form = here.client.post(
        "/actions/paint", data={"csrf": here.csrf(), "name%": quote_path(text[:4000]), "back%": quote_path(text[:99])}
    )
    assert form.status_code == 400
    check_page(form.text)
    sent = json.dumps({"name": ["ball"], text[:4000]: "x"})
    headers = {"X-CSRF-Token": here.csrf(), "Content-Type": "application/json"}
    call = here.client.post("/api/v1/actions/paint/preview", content=sent, headers=headers)
    assert call.status_code == 400
    assert call.content.isascii() or UNSAFE.search(call.text) is None


def test_the_path_is_that_of_the_request() -> None:
    """The path is decoded once, so each byte of an id is kept. A path that a proxy has rewritten is used as it is."""

    def path_of(path: str, raw: bytes, **more: str) -> str:
        found: str = exact({"type": "http", "path": path, "raw_path": raw, **more})["path"]
        return found

    assert path_of("/a%41/ %", b"/a%2541/%20%25") == "/a%41/ %"
    assert path_of("/caf\ufffd", b"/caf%E9") == "/caf\udce9"
    assert path_of("/rewritten", b"/caf%E9") == "/rewritten"
    assert path_of("/wheel/x", b"/wheel/x", root_path="/proxy/wheel", app_root_path="/proxy") == "/proxy/wheel/x"
    assert path_of("/proxy/wheel/x", b"", root_path="/proxy/wheel", app_root_path="/proxy") == "/proxy/wheel/x"
    assert exact({"type": "http", "path": "/x"})["path"] == "/x"


ELSEWHERE = (
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https://evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "\t//evil.example",
    " //evil.example",
    "/x\r\nSet-Cookie: a=b",
    "/\u2028x",
    "",
)


@pytest.mark.parametrize("target", ELSEWHERE)
def test_no_redirect_leads_to_another_site(tmp_path: Path, target: str) -> None:
    """The redirect after signing in and the link back of an action stay on this server. No text adds an HTTP header."""
    made = site(tmp_path, PasswordFile(password_file(tmp_path, ada="delete")))
    answer = sign_in(made.client, "ada", to=target)
    assert answer.headers["location"] == "/"
    assert answer.headers.get_list("set-cookie")[0].startswith("wheel_sched_session=")
    assert len(answer.headers.get_list("set-cookie")) == 1
    asked = made.client.post("/actions/paint", data={"csrf": made.csrf(), "name": "ball", "back": target})
    assert 'href="/">Leave everything as it is</a>' in asked.text


@pytest.mark.parametrize("target", ["/%2f%2fevil.example", "/%5cevil.example", "/.//evil.example", "/%09/evil.example"])
def test_an_encoded_address_stays_a_path_of_this_server(tmp_path: Path, target: str) -> None:
    """The redirect keeps the path encoded, because browsers send a path as the redirect has it."""
    made = site(tmp_path, PasswordFile(password_file(tmp_path, ada="delete")))
    assert sign_in(made.client, "ada", to=target).headers["location"] == target


def test_passwords_in_texts_are_hidden(here: Site) -> None:
    """The password of an address is hidden, even if the text is cut within the address."""
    for before in range(240, 330, 5):
        text = "x" * before + " redis://user:hunter2hunter2@host/0 " + "y" * 5000
        assert "hunter2" not in shown(text, 300)
        assert "hunter" not in shown_lines(text, 300)
    many = "redis://user:hunter2@host/0 " * 1000
    assert "hunter2" not in shown(many, 300)
    assert shown("a" * 5000, 10) == "aaaaaaaaaa... (4,990 more characters)"
    assert shown_lines("a\nb\x1b", 10) == "a\nb\\x1b"


def test_the_name_of_a_visitor_is_foreign_text_too(tmp_path: Path) -> None:
    for name in HOSTILE.values():
        page = site(tmp_path, everyone("operate", name[:5000])).client.get("/members")
        assert page.status_code == 200
        check_page(page.text)


def test_a_sign_in_with_a_hostile_name_is_only_wrong(tmp_path: Path) -> None:
    made = site(tmp_path, PasswordFile(password_file(tmp_path, ada="delete")))
    for text in ("<script>alert(1)</script>", "\0", "a" * 100_000):
        answer = sign_in(made.client, text, PASSWORDS["ada"])
        assert answer.status_code == 401
        check_page(answer.text)
