"""A dashboard over a store in memory, with a small part for tests, and functions that send requests to it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from wheel_sched.config import given_settings
from wheel_sched.dashboard import (
    Action,
    ActionField,
    ActionResult,
    ApiCall,
    Dashboard,
    DashboardApp,
    DashboardConfig,
    DashboardPage,
    DashboardPart,
    PasswordFile,
    Preview,
    everyone,
    password_line,
)
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.dashboard.rights import Authenticate
from wheel_sched.errors import Rejected
from wheel_sched.store import DelayStore, open_store

TEMPLATE = """{% extends "base.html" %}{% from "macros.html" import act, badge %}
{% block title %}Things{% endblock %}
{% block live %}{{ badge("due") }}<ul>{% for name in names %}<li><a href="{{ base }}/things/{{ name|path }}">
{{ name|shown(300) }}</a>{{ act(base, csrf, here, "paint", "Paint", [("name", name)]) }}</li>{% endfor %}</ul>
{% endblock %}"""


@dataclass
class Things:
    """Things with a colour, which the part's actions change. The next change raises `fail`, if it is set."""

    colours: dict[str, str] = field(default_factory=lambda: {"ball": "red", "box": "blue"})
    fail: BaseException | None = None
    previews: int = 0

    def part(self, folder: Path) -> DashboardPart:
        (folder / "things").mkdir(parents=True, exist_ok=True)
        (folder / "things" / "list.html").write_text(TEMPLATE, "utf-8")
        fields = (
            ActionField("name", "which things", required=True, many=True),
            ActionField("colour", "the new colour"),
        )
        return DashboardPart(
            name="things",
            pages=(
                DashboardPage("/things", self.show, "Things", live=True),
                DashboardPage("/things/{name:path}", self.show_one, live=True),
            ),
            calls=(ApiCall("/things/{name:path}", self.answer, "One thing", {"type": "object"}),),
            actions=(
                Action("paint", "operate", "Paint things", fields, self.preview, self.paint),
                Action("scrap", "delete", "Scrap things", fields[:1], self.preview, self.scrap),
            ),
            templates=folder,
        )

    def show(self, dashboard: Dashboard, request: Request) -> Response:
        return dashboard.page(request, "things/list.html", {"names": sorted(self.colours)})

    def show_one(self, dashboard: Dashboard, request: Request) -> Response:
        name = request.path_params["name"]
        return dashboard.page(request, "things/list.html", {"names": [name] if name in self.colours else []})

    def answer(self, _: Dashboard, request: Request) -> Any:
        name = request.path_params["name"]
        return {"name": name, "colour": self.colours.get(name), "asked": request.query_params.getlist("asked")}

    def preview(self, _: Dashboard, arguments: Any) -> Preview:
        self.previews += 1
        unknown = [name for name in arguments["name"] if name not in self.colours]
        if unknown:
            raise Rejected(f"there is no thing {unknown[0]!r}: nothing was changed")
        names = sorted(arguments["name"])
        return Preview(
            len(names),
            f"change {len(names)} things",
            digest_of([(n, self.colours[n]) for n in names]),
            tuple(names[:5]),
        )

    def paint(self, _: Dashboard, arguments: Any, found: Preview, who: str) -> ActionResult:
        return self._change(arguments["name"], lambda name: self.colours.update({name: arguments["colour"]}))

    def scrap(self, _: Dashboard, arguments: Any, found: Preview, who: str) -> ActionResult:
        return self._change(arguments["name"], self.colours.pop)

    def _change(self, names: list[str], change: Any) -> ActionResult:
        if self.fail is not None:
            raise self.fail
        for name in names:
            change(name)
        return ActionResult(len(names), f"{len(names)} things changed", {"locked": 1}, "/things")


@dataclass
class Site:
    """A dashboard and an HTTP client that sends requests to it. The client does not follow redirects."""

    app: DashboardApp
    client: TestClient
    store: DelayStore
    things: Things

    def csrf(self, **options: Any) -> str:
        token: str = self.client.get("/api/v1/session", **options).json()["csrf_token"]
        return token

    def post(self, call: str, body: Any, *, key: str | None = None, csrf: str | None = None, **headers: str) -> Any:
        """Send a call of the JSON API that previews or executes an action."""
        sent = {"X-CSRF-Token": self.csrf() if csrf is None else csrf, **headers}
        if key is not None:
            sent["Idempotency-Key"] = key
        return self.client.post(f"/api/v1/actions/{call}", json=body, headers=sent)

    def token(self, action: str, body: Any) -> str:
        answer = self.post(f"{action}/preview", body)
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["token"]
        return token


def site(
    folder: Path,
    access: Authenticate | PasswordFile | None = None,
    *,
    right: Any = "delete",
    hosts: Collection[str] | None = None,
    secret: bytes | None = None,
    prefix: str = "",
    base_url: str = "http://localhost",
    show_payloads: bool = False,
    store: DelayStore | None = None,
) -> Site:
    """Make a dashboard over a store in memory. By default every visitor has every right."""
    things = Things()
    opened = store or open_store("memory:")
    app = DashboardApp(
        opened,
        given_settings({}),
        access or everyone("delete"),
        config=DashboardConfig(right=right, show_payloads=show_payloads),
        hosts=hosts,
        secret=secret,
        parts=(CORE, things.part(folder)),
    )
    client = TestClient(app, base_url=base_url, root_path=prefix, follow_redirects=False)
    return Site(app, client, opened, things)


PASSWORDS = {"ada": "lovelace 1815", "bob": "builder 1998"}


def password_file(folder: Path, **rights: Any) -> Path:
    """Write a password file with these users. Their passwords are in `PASSWORDS`."""
    path = folder / "users"
    path.write_text("\n".join(password_line(name, right, PASSWORDS[name]) for name, right in rights.items()), "utf-8")
    path.chmod(0o600)
    return path


def sign_in(client: TestClient, name: str, password: str | None = None, to: str = "/", **headers: str) -> Any:
    body = {"name": name, "password": PASSWORDS[name] if password is None else password}
    return client.post("/sign-in", params={"to": to}, data=body, headers=headers)


def hidden(page: str) -> dict[str, list[str]]:
    """The hidden fields of the last form of a page, each with its values."""
    form = page[page.rindex('<form method="post" action="') :]
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form):
        fields.setdefault(unescape(name), []).append(unescape(value))
    return fields


def action_forms(page: str) -> list[dict[str, list[str]]]:
    """The hidden fields of each form on a page with which a visitor asks for an action."""
    forms = re.findall(r'<form method="post" action="[^"]*/actions/.*?</form>', page, re.DOTALL)
    return [hidden(form) for form in forms]
