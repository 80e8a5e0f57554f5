"""Actions: the execution does exactly what the preview showed, once per key. Also rights and the audit log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.trying import PASSWORDS, Site, hidden, password_file, site
from wheel_sched.dashboard import PasswordFile, Right, Visitor, everyone
from wheel_sched.dashboard.actions import PREVIEW_SECONDS
from wheel_sched.dashboard.actions import execute as execute_action
from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.errors import NotDone, StoreUnavailable
from wheel_sched.store import Documents

BODY = {"name": ["ball"], "colour": "green"}
KEY = "a key of mine"


def execute(tried: Site, body: dict[str, Any] = BODY, key: str | None = KEY, action: str = "paint") -> Any:
    return tried.post(action, {**body, "token": tried.token(action, body)}, key=key)


def entries(tried: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tried.client.get("/api/v1/audit").json()["entries"]
    return found


def test_a_preview_changes_nothing_and_the_execution_does_what_it_said(here: Site) -> None:
    seen = here.post("paint/preview", BODY).json()
    assert (seen["count"], seen["words"], seen["samples"]) == (1, "change 1 things", ["ball"])
    assert here.things.colours["ball"] == "red"
    done = here.post("paint", {**BODY, "token": seen["token"]}, key=KEY)
    assert done.status_code == 200
    assert done.json() == {
        "done": 1,
        "words": "1 things changed",
        "left": {"locked": 1},
        "link": "/things",
        "repeated": False,
    }
    assert here.things.colours == {"ball": "green", "box": "blue"}


def test_the_form_does_the_same_without_javascript(here: Site) -> None:
    """A button leads to the preview, its confirmation to the result, and the result back to the page."""
    asked = here.client.post(
        "/actions/paint", data={"csrf": here.csrf(), "name": ["ball", "box"], "colour": "pink", "back": "/things?x=1"}
    )
    assert "This would change 2 things." in asked.text
    assert here.things.colours["ball"] == "red"
    done = here.client.post("/actions/paint", data=hidden(asked.text))
    assert "2 things changed" in done.text
    assert "1 locked" in done.text
    assert here.things.colours == {"ball": "pink", "box": "pink"}
    again = here.client.post("/actions/paint", data=hidden(asked.text))
    assert "an earlier request did this" in again.text


RIGHTS: tuple[Right, ...] = ("read", "operate", "delete")
NEEDED: dict[str, Right] = {"paint": "operate", "scrap": "delete"}


@pytest.mark.parametrize("action", NEEDED)
@pytest.mark.parametrize("ceiling", RIGHTS)
@pytest.mark.parametrize("right", RIGHTS)
def test_a_right_includes_those_before_it_and_none_after(
    tmp_path: Path, right: Right, ceiling: Right, action: str
) -> None:
    """By API and by form, an action is allowed only if the visitor and the dashboard both have the right for it."""
    made = site(tmp_path, everyone(right), right=ceiling)
    may = min(RIGHTS.index(right), RIGHTS.index(ceiling)) >= RIGHTS.index(NEEDED[action])
    body = BODY if action == "paint" else {"name": ["ball"]}
    assert made.post(f"{action}/preview", body).status_code == (200 if may else 403)
    form = made.client.post(f"/actions/{action}", data={**body, "csrf": made.csrf()})
    assert form.status_code == (200 if may else 403)
    token = made.app.dashboard.signer.sign("preview", [action, "x", "local", "x", 1])
    direct = made.post(action, {**body, "token": token}, key=KEY)
    assert direct.status_code == (400 if may else 403), "a token alone gives no right"
    if not may:
        assert "nothing was changed" in direct.text
        assert made.things.previews == 0


def test_a_visitor_with_less_right_cannot_use_the_preview_of_another(tmp_path: Path) -> None:
    made = site(tmp_path, PasswordFile(password_file(tmp_path, ada="operate", bob="read")))
    ada, bob = (("ada", PASSWORDS["ada"]), ("bob", PASSWORDS["bob"]))
    url = "/api/v1/actions/paint"
    headers = {"X-CSRF-Token": made.csrf(auth=ada), "Idempotency-Key": KEY}
    token = made.client.post(f"{url}/preview", json=BODY, headers=headers, auth=ada).json()["token"]
    stolen = {**headers, "X-CSRF-Token": made.csrf(auth=bob)}
    assert made.client.post(url, json={**BODY, "token": token}, headers=stolen, auth=bob).status_code == 403
    assert made.things.colours["ball"] == "red"


def forged(tried: Site) -> dict[str, str]:
    signer, token = tried.app.dashboard.signer, tried.token("paint", BODY)
    return {
        "empty": "",
        "made up": "x.y",
        "not ascii": "é.ü",
        "surrogate": "\ud800.x",
        "changed": token[:-1] + ("0" if token[-1] != "0" else "1"),
        "csrf token": tried.csrf(),
        "of another action": tried.token("scrap", {"name": ["ball"]}),
        "of other arguments": tried.token("paint", {**BODY, "colour": "black"}),
        "of another visitor": signer.sign("preview", ["paint", "x", "eve", "x", 1]),
    }


def test_only_the_token_of_this_request_is_accepted(here: Site) -> None:
    for kind, token in forged(here).items():
        answer = here.client.post(
            "/api/v1/actions/paint",
            content=json.dumps({**BODY, "token": token}),
            headers={"X-CSRF-Token": here.csrf(), "Idempotency-Key": KEY, "Content-Type": "application/json"},
        )
        assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "Rejected"), kind
    assert here.things.colours["ball"] == "red"
    assert entries(here) == []


def test_a_preview_ends(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token, csrf, now = here.token("paint", BODY), here.csrf(), time.time()
    monkeypatch.setattr("wheel_sched.dashboard.signing.time.time", lambda: now + PREVIEW_SECONDS + 5)
    answer = here.post("paint", {**BODY, "token": token}, key=KEY, csrf=csrf)
    assert answer.status_code == 400
    assert "not older than 10 minutes" in answer.json()["error"]["message"]


@pytest.mark.parametrize("key", [None, "", "short", "x" * 201])
def test_an_execution_needs_a_key(here: Site, key: str | None) -> None:
    assert execute(here, key=key).status_code == 400
    assert here.things.colours["ball"] == "red"


def test_what_changed_meanwhile_is_refused_with_the_new_preview(here: Site) -> None:
    """If something has changed since the preview, the action changes nothing. The answer has a new preview, and the
    idempotency key can be used again.
    """
    token = here.token("paint", BODY)
    here.things.colours["ball"] = "white"
    refused = here.post("paint", {**BODY, "token": token}, key=KEY)
    assert (refused.status_code, refused.json()["error"]["kind"]) == (409, "ChangedMeanwhile")
    assert refused.json()["preview"]["count"] == 1
    assert here.things.colours["ball"] == "white"
    assert entries(here) == []
    assert execute(here).status_code == 200


def test_a_form_shows_what_changed_meanwhile(here: Site) -> None:
    """The form shows a new preview, and the visitor can confirm it at once."""
    asked = here.client.post("/actions/paint", data={**BODY, "csrf": here.csrf()})
    here.things.colours["ball"] = "white"
    refused = here.client.post("/actions/paint", data=hidden(asked.text))
    assert refused.status_code == 409
    assert "something has changed since the preview" in refused.text
    assert here.things.colours["ball"] == "white"
    assert here.client.post("/actions/paint", data=hidden(refused.text)).status_code == 200
    assert here.things.colours["ball"] == "green"


def test_a_repeated_request_gets_the_first_answer_and_changes_nothing(here: Site) -> None:
    body = {**BODY, "token": here.token("paint", BODY)}
    first = here.post("paint", body, key=KEY).json()
    here.things.colours["ball"] = "white"
    second = here.post("paint", body, key=KEY).json()
    assert second == {**first, "repeated": True}
    assert here.things.colours["ball"] == "white"
    assert len(entries(here)) == 1


def test_a_key_belongs_to_one_request(here: Site) -> None:
    execute(here)
    other = {"name": ["box"], "colour": "green"}
    refused = execute(here, other)
    assert (refused.status_code, refused.json()["error"]["kind"]) == (409, "KeyTaken")
    assert "used for another request: nothing was changed" in refused.json()["error"]["message"]
    assert here.things.colours["box"] == "blue"


def test_two_visitors_may_choose_the_same_key(tmp_path: Path) -> None:
    name = ["ada"]
    made = site(tmp_path, lambda _: Visitor(name[0], "delete"))
    assert execute(made).status_code == 200
    name[0] = "bob"
    answer = execute(made, {"name": ["box"], "colour": "green"})
    assert answer.json()["repeated"] is False


def test_a_process_that_died_in_the_middle_leaves_the_key_begun(here: Site) -> None:
    """A repeated request changes nothing. It and the audit log say that the first request has begun and not ended."""
    body = {**BODY, "token": here.token("paint", BODY)}
    here.things.fail = KeyboardInterrupt()
    dashboard, local = here.app.dashboard, Visitor("local", "delete")
    with pytest.raises(KeyboardInterrupt):
        execute_action(dashboard, dashboard.actions["paint"], BODY, local, body["token"], KEY)
    here.things.fail = None
    refused = here.post("paint", body, key=KEY)
    assert (refused.status_code, refused.json()["error"]["kind"]) == (409, "KeyTaken")
    assert "has begun and not ended" in refused.json()["error"]["message"]
    assert here.things.colours["ball"] == "red"
    (entry,) = entries(here)
    assert entry["outcome"] == "begun; no end is on record"


def test_the_audit_log_says_who_did_what_and_what_came_of_it(here: Site) -> None:
    execute(here)
    (entry,) = entries(here)
    assert (entry["who"], entry["action"], entry["words"]) == ("local", "paint", "change 1 things")
    assert entry["outcome"] == "1 things changed; left: 1 locked"
    assert json.loads(entry["arguments"]) == BODY
    assert "1 things changed; left: 1 locked" in here.client.get("/audit").text


@pytest.mark.parametrize(("error", "status"), [(NotDone("it is locked"), 409), (StoreUnavailable("away"), 503)])
def test_a_failed_action_is_in_the_audit_log(here: Site, error: Exception, status: int) -> None:
    here.things.fail = error
    assert execute(here).status_code == status
    (entry,) = entries(here)
    assert entry["outcome"] == f"failed: {error}"


def test_nothing_is_changed_when_the_audit_log_cannot_be_written(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The idempotency key can be used again, so the request can be repeated."""
    body = {**BODY, "token": here.token("paint", BODY)}

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(AuditLog, "begin", away)
        assert here.post("paint", body, key=KEY).status_code == 503
    assert here.things.colours["ball"] == "red"
    assert here.post("paint", body, key=KEY).json()["repeated"] is False


def test_what_was_done_is_answered_although_its_end_cannot_be_written(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says what was done. An error would lead the user to do it twice. Audit entry and key stay "begun"."""

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    body = {**BODY, "token": here.token("paint", BODY)}
    with monkeypatch.context() as patched:
        patched.setattr(AuditLog, "end", away)
        assert here.post("paint", body, key=KEY).json()["done"] == 1
    assert entries(here)[0]["outcome"] == "begun; no end is on record"


def test_the_audit_log_has_pages_and_an_end(here: Site) -> None:
    log = AuditLog(here.store)
    for number in range(7):
        log.end(log.begin("ada", "paint", f"change {number}", {}), "done")
    first = here.client.get("/api/v1/audit?limit=5").json()
    assert [one["words"] for one in first["entries"]] == [f"change {number}" for number in (6, 5, 4, 3, 2)]
    second = here.client.get("/api/v1/audit", params={"limit": 5, "cursor": first["cursor"]}).json()
    assert [one["words"] for one in second["entries"]] == ["change 1", "change 0"]
    assert 'rel="next"' in here.client.get("/audit?limit=5").text


def test_long_texts_in_the_audit_log_are_cut(here: Site) -> None:
    log = AuditLog(here.store)
    log.end(log.begin("w" * 1000, "paint", "x" * 1000, {"name": ["y" * 9000]}), "z" * 1000)
    (entry,) = entries(here)
    assert (len(entry["who"]), len(entry["words"]), len(entry["outcome"])) == (500, 500, 500)
    assert len(entry["arguments"]) == 2000


WRONG = (
    {},
    {"name": []},
    {"name": ""},
    {"name": [1]},
    {"name": {"a": 1}},
    {"name": ["ball"], "colour": ["red", "green"]},
    {"name": ["ball"], "colour": 5},
    {"name": ["ball"], "more": "x"},
    {"name": ["ball"], "x" * 100_000: "x"},
    {"name": ["gone"]},
)


@pytest.mark.parametrize("body", WRONG, ids=lambda body: str(body)[:40])
def test_wrong_arguments_change_nothing_and_say_what_is_wrong(here: Site, body: dict[str, Any]) -> None:
    answer = here.post("paint/preview", body)
    assert answer.status_code == 400
    assert "nothing was changed" in answer.json()["error"]["message"]
    assert len(answer.text) < 1000


def test_a_form_with_two_values_for_one_field_is_refused(here: Site) -> None:
    """A form that has a field twice is refused, because nobody knows which of the values is meant."""
    answer = here.client.post("/actions/paint", data={"name": "ball", "colour": ["red", "green"], "csrf": here.csrf()})
    assert answer.status_code == 400
    assert "expected colour to be a text" in answer.text


def test_an_unknown_action_changes_nothing(here: Site) -> None:
    assert here.post("explode/preview", {}).status_code == 404
    assert here.post("x" * 5000, {}).status_code == 404
    assert here.client.post("/actions/explode", data={"csrf": here.csrf()}).status_code == 404
    assert Documents(here.store).newest("audit", 1, None).documents == []
