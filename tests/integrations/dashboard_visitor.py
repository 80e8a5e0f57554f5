"""A visitor of a dashboard in tests: opens pages, calls the API and carries out actions.

Each answer to a call or an action is checked against the OpenAPI document.
"""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from tests.json_schema import validate
from wheel_sched.dashboard import DashboardPart


class Visiting:
    """A visitor of a dashboard: pages, calls of the API, and actions.

    Args:
        app: the dashboard.
        part: the part whose calls are checked against their schemas.
    """

    def __init__(self, app: Any, part: DashboardPart) -> None:
        self.app = app
        self._calls = {call.path: call for call in part.calls}
        self.client = TestClient(app, base_url="http://localhost", raise_server_exceptions=True)
        self._keys = 0

    def page(self, path: str, status: int = 200, **query: Any) -> str:
        """The HTML of a page."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == status, answer.text
        return answer.text

    def call(self, path: str, status: int = 200, **query: Any) -> Any:
        """The answer of an API call, also if it is a refusal, checked against its schema."""
        answer = self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text
        found = answer.json()
        if status == 200:
            known = self._calls.get(path) or next(
                call for name, call in self._calls.items() if "{" in name and path.startswith(name.partition("{")[0])
            )
            validate(found, known.schema)
        else:
            self._check_refusal(found)
        return found

    def preview(self, action: str, status: int = 200, **arguments: Any) -> Any:
        """What an action would do."""
        return self._post(f"/actions/{action}/preview", status, arguments)

    def execute(self, action: str, token: str, status: int = 200, **arguments: Any) -> Any:
        """Execute what was previewed."""
        return self._post(f"/actions/{action}", status, {**arguments, "token": token})

    def act(self, action: str, **arguments: Any) -> Any:
        """Preview an action and execute it. As much is done as the preview said."""
        found = self.preview(action, **arguments)
        done = self.execute(action, found["token"], **arguments)
        assert done["done"] == found["count"]
        return done

    def _post(self, path: str, status: int, body: Any) -> Any:
        self._keys += 1
        token = self.client.get("/api/v1/session").json()["csrf_token"]
        headers = {"x-csrf-token": token, "idempotency-key": f"key-number-{self._keys}"}
        answer = self.client.post(f"/api/v1{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        if status >= 400:
            self._check_refusal(answer.json())
        else:
            document = self._document()
            (found,) = document["paths"][path]["post"]["responses"]["200"]["content"].values()
            validate(answer.json(), {**found["schema"], "components": document["components"]})
        return answer.json()

    def _check_refusal(self, answer: Any) -> None:
        validate(answer, self._document()["components"]["schemas"]["Error"])

    def _document(self) -> Any:
        return self.client.get("/api/v1/openapi.json").json()
