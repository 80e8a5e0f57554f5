"""What a package adds to the dashboard: pages, calls of the JSON API, and actions that change something.

A package names its part in its `Extension`, as the text "module:attribute". The dashboard imports the part at start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.rights import Right
from wheel_sched.errors import WheelSchedError
from wheel_sched.management.problem import Problem

Dashboard = Any
"""A `wheel_sched.dashboard.Dashboard`. Its module imports this module, so this module cannot import the class."""


class NotFound(WheelSchedError):
    """An address names something that does not exist. The message says what to do."""


class DashboardPage(NamedTuple):
    """A page for people. It only reads.

    Args:
        path: below the dashboard's root, such as "/items/{id:path}".
        show: called as `show(dashboard, request)` in a worker thread; returns
            `dashboard.page(request, template, values)`.
        label: the page's name in the navigation. Defaults to "": the navigation does not list the page.
        live: whether an open page gets the template's block `live` again when it has changed, about once a second.
            Defaults to False.
        place: the page's place in the navigation, see `DashboardPart`. Defaults to 0: the place of its part.
    """

    path: str
    show: Callable[[Dashboard, Request], Response]
    label: str = ""
    live: bool = False
    place: int = 0


class Parameter(NamedTuple):
    """A parameter in the query of an API call, for the OpenAPI document."""

    name: str
    about: str
    kind: str = "string"
    many: bool = False


class ApiCall(NamedTuple):
    """A call of the JSON API that reads.

    Args:
        path: below /api/v1, such as "/items/{id}".
        answer: called as `answer(dashboard, request)` in a worker thread; returns data for JSON.
        summary: one line for the OpenAPI document.
        schema: the JSON schema of the answer. The tests check each answer against the schema.
        parameters: the query parameters. Defaults to none.
    """

    path: str
    answer: Callable[[Dashboard, Request], Any]
    summary: str
    schema: Mapping[str, Any]
    parameters: Sequence[Parameter] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would do. A preview changes nothing.

    Args:
        count: how many things the action would change.
        words: what the action would do, such as "replay 3 dead letters of orders".
        digest: identifies what would be changed, such as `digest_of` the ids and versions. Another preview of the same
            request has the same digest, unless something has changed meanwhile.
        samples: up to five of the things, a line each. Defaults to none.
        warning: what the user should know before the action. Defaults to "".
        selected: an object for `execute`, which does not leave the process. Defaults to None.
    """

    count: int
    words: str
    digest: str
    samples: tuple[str, ...] = ()
    warning: str = ""
    selected: Any = None


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action did.

    Args:
        done: how many things the action changed.
        words: what the action did, such as "3 messages due now".
        left: how many things the action left unchanged, by reason. Defaults to none.
        link: a path of the dashboard where the user sees the result. Defaults to "": the page before.
    """

    done: int
    words: str
    left: Mapping[str, int] = field(default_factory=dict)
    link: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"done": self.done, "words": self.words, "left": dict(self.left), "link": self.link}


class ActionField(NamedTuple):
    """An argument of an action.

    Args:
        name: its name in forms and JSON. A form may repeat the name when `many` is True.
        about: what the argument means, for the OpenAPI document.
        required: whether a request must give it. Defaults to False.
        many: whether the value is a list of texts. Defaults to False.
    """

    name: str
    about: str
    required: bool = False
    many: bool = False


Arguments = Mapping[str, Any]
"""The arguments that a request gives, by name: a text, or a list of texts if the field has `many`."""


class Action(NamedTuple):
    """A change that a user can ask for. The user sees a preview first. The execution does what it shows, or nothing.

    Args:
        name: its name in the API, in kebab case, such as "pause-topic".
        right: the right that the user needs: "operate" or "delete".
        summary: one line for the OpenAPI document.
        fields: its arguments.
        preview: called as `preview(dashboard, arguments)` in a worker thread. Changes nothing. Raises a
            `WheelSchedError` when the request makes no sense.
        execute: called as `execute(dashboard, arguments, preview, name of the visitor)`. The preview is a new one, with
            the digest of the preview that the user has seen. `execute` must change only what this preview selected. If
            one of these things has changed since, it stays as it is and is counted in `left`.
    """

    name: str
    right: Right
    summary: str
    fields: Sequence[ActionField]
    preview: Callable[[Dashboard, Arguments], Preview]
    execute: Callable[[Dashboard, Arguments, Preview, str], ActionResult]


@dataclass(frozen=True, slots=True)
class DashboardPart:
    """The additions of a package to the dashboard.

    Args:
        name: the folder of its templates, such as "retry_topic". `Dashboard.opened` takes the same name.
        pages: its pages. Defaults to none.
        calls: its calls of the JSON API. Defaults to none.
        actions: its actions. Defaults to none.
        templates: a folder that holds `NAME/page.html`. Defaults to None.
        open: called once as `open(dashboard)` when a page first asks for `dashboard.opened(name)`. Returns an object
            that the pages share, such as a connection, with a method `close`. Defaults to None.
        panels: functions for the overview, called as `panel(dashboard)`. Each returns a `Panel` or None. Defaults to
            none.
        started: starts background work, see `Dashboard.kept`. Called as `started(dashboard)` in a thread when a server
            begins to serve the dashboard. If it raises, it is called again after 5 s. A mounted dashboard calls it at
            the first request, unless visitors may only read. Defaults to None.
        place: parts with a lower number come first in the navigation and on the overview, from 0. Defaults to 50.
    """

    name: str
    pages: Sequence[DashboardPage] = ()
    calls: Sequence[ApiCall] = ()
    actions: Sequence[Action] = ()
    templates: Path | None = None
    open: Callable[[Dashboard], Any] | None = None
    panels: Sequence[Callable[[Dashboard], Panel | None]] = ()
    started: Callable[[Dashboard], None] | None = None
    place: int = 50


class Panel(NamedTuple):
    """A part of the overview that a package adds: lines of (label, text, link), problems, and a chart."""

    title: str
    lines: Sequence[tuple[str, str, str]] = ()
    problems: Sequence[Problem] = ()
    chart: Markup | None = None
