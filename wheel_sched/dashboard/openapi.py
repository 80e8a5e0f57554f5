"""The OpenAPI document of the JSON API, made from what the parts declare."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from wheel_sched.dashboard.parts import Action, ApiCall, DashboardPart

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["kind", "message"], "properties": {"kind": _TEXT, "message": _TEXT}}
    },
}
_PREVIEW = {
    "type": "object",
    "required": ["count", "words", "samples", "warning", "token"],
    "properties": {
        "count": {"type": "integer"},
        "words": _TEXT,
        "samples": {"type": "array", "items": _TEXT},
        "warning": _TEXT,
        "token": _TEXT,
    },
}
_RESULT = {
    "type": "object",
    "required": ["done", "words", "left", "link", "repeated"],
    "properties": {
        "done": {"type": "integer"},
        "words": _TEXT,
        "left": {"type": "object", "additionalProperties": {"type": "integer"}},
        "link": _TEXT,
        "repeated": {"type": "boolean"},
    },
}
_SESSION = {
    "type": "object",
    "required": ["name", "right", "csrf_token"],
    "properties": {"name": _TEXT, "right": {"enum": ["read", "operate", "delete"]}, "csrf_token": _TEXT},
}
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(parts: Sequence[DashboardPart], prefix: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        parts: the parts of the dashboard.
        prefix: the path of the API on this server.
    """
    paths: dict[str, Any] = {"/session": {"get": _read("The visitor, and the CSRF token", _SESSION, [])}}
    for part in parts:
        for call in part.calls:
            paths[_PLACE.sub(r"{\1}", call.path)] = {"get": _read(call.summary, call.schema, _parameters(call))}
        for action in part.actions:
            paths[f"/actions/{action.name}/preview"] = {"post": _preview(action)}
            paths[f"/actions/{action.name}"] = {"post": _execute(action)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "wheel-sched", "version": "v1"},
        "servers": [{"url": prefix}],
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _parameters(call: ApiCall) -> list[dict[str, Any]]:
    in_path = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _PLACE.findall(call.path)]
    in_query = [
        {
            "name": one.name,
            "in": "query",
            "description": one.about,
            "schema": {"type": "array", "items": {"type": one.kind}} if one.many else {"type": one.kind},
        }
        for one in call.parameters
    ]
    return in_path + in_query


def _answers(schema: Any) -> dict[str, Any]:
    error = {
        "description": "an error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {
        "200": {"description": "the answer", "content": {"application/json": {"schema": schema}}},
        "default": error,
    }


def _read(summary: str, schema: Any, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"summary": summary, "parameters": parameters, "responses": _answers(schema)}


def _body(action: Action, token: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        field.name: {"type": "array", "items": _TEXT, "description": field.about}
        if field.many
        else {"type": "string", "description": field.about}
        for field in action.fields
    }
    required = [field.name for field in action.fields if field.required]
    if token:
        fields["token"] = {"type": "string", "description": "the token of the preview"}
        required.append("token")
    schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _header(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "description": about, "schema": _TEXT}


_CSRF = _header("X-CSRF-Token", "the token of /session")
_KEY = _header("Idempotency-Key", "a text that the caller chooses; a repeated request with it gets the first answer")


def _preview(action: Action) -> dict[str, Any]:
    return {
        "summary": f"Preview: {action.summary}",
        "parameters": [_CSRF],
        "requestBody": _body(action, token=False),
        "responses": _answers(_PREVIEW),
    }


def _execute(action: Action) -> dict[str, Any]:
    return {
        "summary": action.summary,
        "parameters": [_CSRF, _KEY],
        "requestBody": _body(action, token=True),
        "responses": _answers(_RESULT),
    }
