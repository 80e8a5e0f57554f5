"""The OpenAPI document describes the API: each call that it lists exists and answers as it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.documented import DocumentedApi
from tests.dashboard.trying import Site
from tests.json_schema import check_schema, validate
from wheel_sched.config import given_settings
from wheel_sched.dashboard import DashboardApp, everyone
from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.dashboard.endpoints_api import ApiEndpoints
from wheel_sched.dashboard.process_part import PROCESS
from wheel_sched.store import Item, Member, Members, open_store

# the parts of the OpenAPI 3.1 schema that matter here
OPERATION = {
    "type": "object",
    "required": ["summary", "parameters", "responses"],
    "properties": {
        "parameters": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "in", "schema"],
                "properties": {"name": {"type": "string"}, "in": {"enum": ["path", "query", "header"]}},
                "if": {"properties": {"in": {"const": "path"}}},
                "then": {"required": ["required"], "properties": {"required": {"const": True}}},
            },
        },
        "requestBody": {"type": "object", "required": ["content"]},
        "responses": {
            "type": "object",
            "required": ["200", "default"],
            "additionalProperties": {
                "type": "object",
                "required": ["description", "content"],
                "properties": {"content": {"type": "object", "required": ["application/json"]}},
            },
        },
    },
}
DOCUMENT = {
    "type": "object",
    "required": ["openapi", "info", "servers", "paths", "components"],
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "components": {"type": "object"},
        "servers": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["url"]}},
        "paths": {
            "type": "object",
            "propertyNames": {"pattern": "^/"},
            "additionalProperties": {
                "type": "object",
                "minProperties": 1,
                "properties": {"get": OPERATION, "post": OPERATION},
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


@pytest.fixture
def document(here: Site) -> dict[str, Any]:
    found: dict[str, Any] = here.client.get("/api/v1/openapi.json").json()
    return found


def test_the_document_has_the_form_of_openapi(document: dict[str, Any]) -> None:
    validate(document, DOCUMENT)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            places = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert places == set(re.findall(r"\{(\w+)\}", path)), path
            check_schema(operation["responses"]["200"]["content"]["application/json"]["schema"])


def test_every_call_and_action_is_in_it(here: Site, document: dict[str, Any]) -> None:
    """The OpenAPI document has every call and action of the dashboard, and nothing else."""
    wanted = {"/session"}
    for part in here.app.dashboard.parts:
        wanted |= {re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", call.path) for call in part.calls}
        for action in part.actions:
            wanted |= {f"/actions/{action.name}", f"/actions/{action.name}/preview"}
    assert set(document["paths"]) == wanted


def test_no_call_is_answered_that_the_document_does_not_list(here: Site, document: dict[str, Any]) -> None:
    """Each route of the API is in the document. Two are not: the document itself, and the answer "no such call"."""
    routes = ApiEndpoints(here.app.dashboard, everyone("read")).routes()
    paths = {re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", route.path.removeprefix("/api/v1")) for route in routes}
    actions = {"/actions/{name}", "/actions/{name}/preview"}
    listed = {path for path in document["paths"] if not path.startswith("/actions/")}
    assert paths == {*listed, *actions, "/openapi.json", "/{rest}"}


def test_the_calls_about_the_process_and_the_core_are_all_asked() -> None:
    """The test makes every call of the core part and of the process part."""
    with open_store("memory:") as store:
        app = DashboardApp(store, given_settings({}), everyone("delete"), parts=(CORE, PROCESS))
        api = DocumentedApi(TestClient(app, base_url="http://localhost"))
        for path in ("/session", "/overview", "/members", "/audit", "/process"):
            api.get(path)
        assert not api.left_out
        app.close()


def test_every_reading_call_answers_as_the_document_says(here: Site, document: dict[str, Any]) -> None:
    """The calls are made over an empty store, and over a store with items, members and changes."""
    for full in (False, True):
        if full:
            here.store.schedule([Item("id", 0, b"x", "orders"), Item("later", 9_000_000_000_000, b"x", "")])
            Members(here.store).announce(Member("consumer", "billing"), 60_000)
            log = AuditLog(here.store)
            log.end(log.begin("ada", "paint", "change 1 things", {}), "done")
        for path, operations in document["paths"].items():
            if "get" in operations:
                answer = here.client.get("/api/v1" + re.sub(r"\{\w+\}", "ball", path))
                assert answer.status_code == 200, path
                check(document, operations["get"], answer.json())


def check(document: dict[str, Any], operation: dict[str, Any], answer: Any, status: str = "200") -> None:
    schema = operation["responses"][status]["content"]["application/json"]["schema"]
    validate(answer, {**schema, "components": document["components"]})


def test_actions_and_errors_answer_as_the_document_says(here: Site, document: dict[str, Any]) -> None:
    body = {"name": ["ball"], "colour": "green"}
    previewing, executing = (document["paths"][f"/actions/paint{end}"]["post"] for end in ("/preview", ""))
    seen = here.post("paint/preview", body)
    check(document, previewing, seen.json())
    sent = {**body, "token": seen.json()["token"]}
    validate(sent, executing["requestBody"]["content"]["application/json"]["schema"])
    check(document, executing, here.post("paint", sent, key="a key of mine").json())
    for answer in (here.post("paint", sent), here.post("paint/preview", {}), here.post("paint", sent, csrf="x")):
        assert answer.status_code >= 400
        check(document, executing, answer.json(), "default")
    assert {one["name"] for one in executing["parameters"]} == {"X-CSRF-Token", "Idempotency-Key"}


def test_a_server_answers_where_the_document_says(here: Site, document: dict[str, Any]) -> None:
    assert [one["url"] for one in document["servers"]] == ["/api/v1"]
    here.client._transport.root_path = "/tools/wheel"  # type: ignore[attr-defined]
    mounted = here.client.get("/api/v1/openapi.json").json()
    assert [one["url"] for one in mounted["servers"]] == ["/tools/wheel/api/v1"]
