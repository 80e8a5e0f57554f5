"""Messages in the dashboard: a search over all messages, a page for each message, and actions on messages."""

from __future__ import annotations

from retry_topic.dashboard.items import one_item, searching
from retry_topic.dashboard.items.actions import ACTIONS
from retry_topic.dashboard.items.answers import ITEM, ONE_ITEM
from retry_topic.dashboard.items.panel import PANELS
from wheel_sched.dashboard import ApiCall, DashboardPage, Parameter
from wheel_sched.dashboard.schemas import INTEGER, TEXT, TEXT_OR_NONE, listing

__all__ = ["ACTIONS", "CALLS", "PAGES", "PANELS"]

PAGES: tuple[DashboardPage, ...] = (
    DashboardPage("/items", searching.show, "Messages"),
    DashboardPage("/items/{id:path}", one_item.show),
)
CALLS: tuple[ApiCall, ...] = (
    ApiCall(
        "/items",
        searching.answer,
        "The messages that a search chooses, state by state in order of due time",
        listing("items", ITEM, search=TEXT, looked=INTEGER, cursor=TEXT_OR_NONE, now_ms=INTEGER),
        (
            Parameter("search", "such as topic:orders error:*Timeout* attempt>3 due<1h"),
            Parameter("state", "due, leased, held or dead; replaces the states of the search"),
            Parameter("limit", "at most this many, up to 200", "integer"),
            Parameter("cursor", "the cursor in the answer of the page before"),
        ),
    ),
    ApiCall(
        "/items/{id:path}",
        one_item.answer,
        "Everything about one message; a payload of over a million bytes is left out",
        ONE_ITEM,
    ),
)
