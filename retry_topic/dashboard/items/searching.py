"""The list of messages: a search, tabs for the states, and the messages that match, in pages."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.items.answers import item_as_dict
from retry_topic.dashboard.opening import connection_of
from retry_topic.management.paging import matching_page
from retry_topic.management.search import Search, SearchError, parse_search
from wheel_sched.dashboard import Dashboard
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.errors import Rejected
from wheel_sched.management.wording import state_word
from wheel_sched.store import Counts
from wheel_sched.store.core.items import STATES

_SUGGESTED = 50
_EXAMPLES = ("error:*Timeout*", "attempt>3", "due<1h", "died<1d", "fp:3f2a", "policy:default")


class StateTab(NamedTuple):
    """A tab of the list: its label, its search, its number of messages, and whether it is the open one."""

    label: str
    search: str
    amount: int
    current: bool


def search_of(request: Request) -> Search:
    """The search of a request; its parameter `state` replaces the states in the text.

    Raises:
        SearchError: the text is no search.
        Rejected: there is no such state.
    """
    found = parse_search(request.query_params.get("search", ""))
    state = request.query_params.get("state", "")
    if not state:
        return found
    for known in STATES:
        if known == state:
            return found.only(known)
    raise Rejected(f"expected state to be one of {', '.join(STATES)}, got: {state[:40]!r}")


def show(dashboard: Dashboard, request: Request) -> Response:
    """The list as a page. For a search with a mistake, the page names the mistake and lists no messages."""
    counts = dashboard.sampler.now().counts
    shared = {"suggestions": _suggestions(counts), "text": request.query_params.get("search", ""), "error": None}
    none: dict[str, Any] = {"tabs": [], "badges": [], "entries": [], "looked": 0, "cursor": None, "now_ms": 0}
    none |= {"search": "", "fixed": "", "first": True, "mixed": False, "states": STATES, "limit": ""}
    template = "retry_topic/items.html"
    try:
        search = search_of(request)
    except SearchError as error:
        return dashboard.page(request, template, {**shared, **none, "error": str(error)}, 400)
    connection = connection_of(dashboard)
    now_ms, cursor = dashboard.store.now_ms(), cursor_of(request)
    chosen = search.filter(now_ms)
    page = matching_page(connection, chosen, cursor=cursor, limit=limit_of(request))
    values = {
        **shared,
        "text": str(search),
        "search": str(search),
        "fixed": str(search.fixed(now_ms)),
        "tabs": _tabs(search, counts),
        "badges": [(str(term), str(search.without(place))) for place, term in enumerate(search.terms)],
        "entries": page.entries,
        "looked": page.looked,
        "cursor": page.cursor,
        "limit": request.query_params.get("limit", ""),
        "first": cursor is None,
        "mixed": len(chosen.states) != 1,
        "states": chosen.states or STATES,
        "now_ms": now_ms,
    }
    return dashboard.page(request, template, values)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The list as data for the JSON API."""
    search, connection = search_of(request), connection_of(dashboard)
    now_ms = dashboard.store.now_ms()
    page = matching_page(connection, search.filter(now_ms), cursor=cursor_of(request), limit=limit_of(request))
    shows = dashboard.config.show_payloads
    return {
        "search": str(search),
        "items": [item_as_dict(entry, show_payloads=shows) for entry in page.entries],
        "looked": page.looked,
        "cursor": page.cursor,
        "now_ms": now_ms,
    }


def _tabs(search: Search, counts: Counts) -> list[StateTab]:
    """The tabs: one for all states and one for each, with the number of messages in the topic of the search, or in all.

    The other conditions of the search do not change these numbers.
    """
    topic = next((term.value for term in search.terms if term.name == "topic"), None)
    amounts = {state: counts.total(state) if topic is None else counts.now.get((state, topic), 0) for state in STATES}
    rows = [
        StateTab(state_word(state), str(search.only(state)), amounts[state], search.states == (state,))
        for state in STATES
    ]
    return [StateTab("all", str(search.only(None)), sum(amounts.values()), not search.states), *rows]


def _suggestions(counts: Counts) -> list[str]:
    """What the search field suggests: topics, states, and an example of each other part."""
    topics = [str(Search().with_topic(topic)) for topic in counts.topics[:_SUGGESTED]]
    return [*topics, *(f"state:{state}" for state in STATES), *_EXAMPLES]
