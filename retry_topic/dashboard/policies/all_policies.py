"""The page and the call that show all policies."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.policies.charts import delay_chart
from retry_topic.dashboard.policies.reading import present_policies, source_of
from retry_topic.dashboard.policies.schemas import POLICY
from retry_topic.management.policy_trials import pictures
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage
from wheel_sched.dashboard.schemas import INTEGER, TEXT_OR_NONE, listing

_SHOWN = 10  # drawing a chart takes some milliseconds
_NAMED = 1_000


def show(dashboard: Dashboard, request: Request) -> Response:
    """The policies as a page."""
    policies = present_policies(dashboard)
    found = pictures(policies, _SHOWN)
    shown = {one.topic for one in found}
    values = {
        "source": source_of(dashboard),
        "pictures": [(one, delay_chart(one)) for one in found],
        "others": [topic for topic in sorted(policies.topics) if topic not in shown][:_NAMED],
    }
    return dashboard.page(request, "retry_topic/policies.html", values)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The first ten policies as data for the JSON API. `more` says how many others there are."""
    policies = present_policies(dashboard)
    found = pictures(policies, _SHOWN)
    return {
        "source": source_of(dashboard),
        "policies": [one.as_dict() for one in found],
        "more": len(policies.topics) + 1 - len(found),
    }


PAGES = (DashboardPage("/policies", show, "Policies"),)
CALLS = (
    ApiCall(
        "/policies",
        answer,
        "The retry policies, in words and as data",
        listing("policies", POLICY, source=TEXT_OR_NONE, more=INTEGER),
    ),
)
