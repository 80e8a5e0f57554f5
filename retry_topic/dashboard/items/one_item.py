"""The page of one message: the reason for its state, its attempts, its error, its payload, and its actions."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.dead_letters.addresses import group_path
from retry_topic.dashboard.items.answers import one_as_dict
from retry_topic.dashboard.items.error_diff import error_changes
from retry_topic.dashboard.items.next_decision import next_decision
from retry_topic.dashboard.items.payloads import VIEWS, shown_payload
from retry_topic.dashboard.items.timeline import timeline, waits_of
from retry_topic.dashboard.opening import connection_of, settings_of
from retry_topic.management.explaining import ExplainedMessage, explain
from retry_topic.management.filters import ListedMessage
from retry_topic.management.inbox.groups import group_of
from retry_topic.management.search import SearchTerm
from retry_topic.message.headers import HEADER_NAMES
from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.dashboard.addresses import base_of
from wheel_sched.dashboard.rendering import shown_lines
from wheel_sched.errors import NotDone

_LOOKED_THROUGH = 2_000  # items that are read to find a message by the id in its log lines
_TRACEBACK = 20_000  # characters
_VALUE = 200
_HEADERS = 100

_CALL = """API={api}
BODY={body}
CSRF=$(curl -s -u "$NAME" "$API/session" | jq -r .csrf_token)
TOKEN=$(curl -s -u "$NAME" -H "X-CSRF-Token: $CSRF" -H 'Content-Type: application/json' \\
  -d "$BODY" "$API/actions/{action}/preview" | jq -r .token)
curl -s -u "$NAME" -H "X-CSRF-Token: $CSRF" -H 'Content-Type: application/json' \\
  -H "Idempotency-Key: $(date +%s)-$$" \\
  -d "$(jq -n --argjson body "$BODY" --arg token "$TOKEN" '$body + {{token: $token}}')" \\
  "$API/actions/{action}\""""


def _found(dashboard: Dashboard, request: Request) -> ExplainedMessage:
    """The message that the address names.

    Raises:
        NotFound: no message has the id, or several have it.
    """
    try:
        return explain(connection_of(dashboard), request.path_params["id"], _LOOKED_THROUGH)
    except NotDone as error:
        raise NotFound(str(error)) from error


def show(dashboard: Dashboard, request: Request) -> Response:
    """The message as a page."""
    found = _found(dashboard, request)
    entry, shows = found.entry, dashboard.config.show_payloads
    message, known = entry.letter.message, entry.letter.failed_attempts
    headers = [] if message is None else [pair for pair in message.headers if pair[0] not in HEADER_NAMES]
    values = {
        "entry": entry,
        "state": entry.letter.state,
        "why": found.why,
        "now_ms": found.now_ms,
        "group_link": group_path(entry.found.topic, group_of(entry.found)),
        "asked_for": next(iter(found.stored_as), None),
        "picture": timeline(waits_of(entry), found.now_ms),
        "attempts": known.attempts,
        "dropped": known.dropped,
        "changes": error_changes(known.attempts),
        "traceback": None if entry.letter.traceback is None else shown_lines(entry.letter.traceback, _TRACEBACK),
        "headers": [(name, value.decode("utf-8", "backslashreplace")[:_VALUE]) for name, value in headers[:_HEADERS]],
        "more_headers": max(0, len(headers) - _HEADERS),
        "key": _key(entry) if shows else None,
        "key_search": {"search": f"state:held {SearchTerm('key', ':', _key(entry) or '')}"},
        "payload": shown_payload(entry, request.query_params.get("view", "")) if shows else None,
        "size": None if message is None else len(message.value),
        "reference": None if message is None or message.reference is None else str(message.reference),
        "views": VIEWS,
        "next": next_decision(settings_of(dashboard), entry, found.now_ms),
        "call": shown_lines(_call(request, entry), 4_000),
    }
    return dashboard.page(request, "retry_topic/item.html", values)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The message as data for the JSON API."""
    found = _found(dashboard, request)
    coming = next_decision(settings_of(dashboard), found.entry, found.now_ms)
    whole = one_as_dict(found, show_payloads=dashboard.config.show_payloads)
    return {**whole, "next_decision": None if coming is None else coming.as_dict()}


def _key(entry: ListedMessage) -> str | None:
    message = entry.letter.message
    return None if message is None or message.key is None else message.key.decode("utf-8", "surrogateescape")


def _call(request: Request, entry: ListedMessage) -> str:
    """A shell script that runs the message now through the API. `NAME` is the user's name; curl asks the password."""
    host = request.headers.get("host", "localhost")
    return _CALL.format(
        api=quote(f"{request.url.scheme}://{host}{base_of(request)}/api/v1"),
        body=quote(json.dumps({"ids": [entry.id]})),
        action="replay" if entry.found.state == "dead" else "run-now",
    )
