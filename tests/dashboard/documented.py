"""Makes calls and actions of a JSON API, and checks each request and answer against the OpenAPI document."""

from __future__ import annotations

import re
import uuid
from typing import Any
from urllib.parse import quote

from tests.json_schema import validate

_NOTHING = "nothing-of-this-name"


class DocumentedApi:
    """The API of a dashboard, as its OpenAPI document describes it.

    Args:
        client: an HTTP client of the dashboard whose visitor has every right.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._document: dict[str, Any] = client.get("/api/v1/openapi.json").json()
        self._csrf = client.get("/api/v1/session").json()["csrf_token"]
        self._asked: set[str] = set()

    @property
    def left_out(self) -> set[str]:
        """The paths in the document that no test has called with success."""
        return set(self._document["paths"]) - self._asked

    def get(self, path: str, query: dict[str, str] | None = None, **names: str) -> Any:
        """Make a call that reads, and check its answer. Returns the answer."""
        address = "/api/v1" + path.format(**{name: quote(value, safe="") for name, value in names.items()})
        answer = self._client.get(address, params=query)
        self._check(path, "get", answer, 200)
        documented = {one["name"] for one in self._document["paths"][path]["get"]["parameters"] if one["in"] == "query"}
        assert documented >= set(query or ()), path
        self._asked.add(path)
        return answer.json()

    def absent(self, path: str) -> None:
        """Make a call that reads, about a thing that does not exist. The answer must be 404."""
        answer = self._client.get("/api/v1" + re.sub(r"\{\w+\}", _NOTHING, path))
        self._check(path, "get", answer, 404)

    def act(self, action: str, **arguments: Any) -> Any:
        """Preview an action and execute it. Without the preview's token, it must be refused. Returns the answer."""
        path = f"/actions/{action}"
        assert self._post(path, arguments, 400)  # without the token of a preview
        seen = self._post(f"{path}/preview", arguments, 200)
        assert seen["count"] >= 1, (action, seen)
        done = self._post(path, {**arguments, "token": seen["token"]}, 200)
        self._asked |= {path, f"{path}/preview"}
        return done

    def _post(self, path: str, body: dict[str, Any], status: int) -> Any:
        operation = self._document["paths"][path]["post"]
        if status == 200:
            validate(body, operation["requestBody"]["content"]["application/json"]["schema"])
        headers = {"X-CSRF-Token": self._csrf, "Idempotency-Key": uuid.uuid4().hex}
        answer = self._client.post(f"/api/v1{path}", json=body, headers=headers)
        self._check(path, "post", answer, status)
        return answer.json()

    def _check(self, path: str, method: str, answer: Any, status: int) -> None:
        assert answer.status_code == status, (path, answer.text)
        responses = self._document["paths"][path][method]["responses"]
        found = responses["200" if status == 200 else "default"]["content"]["application/json"]["schema"]
        validate(answer.json(), {**found, "components": self._document["components"]})
