"""The page and the call that compare an edited policy with the recorded attempts. The policy is never stored."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.policies.reading import present_policies, refusing
from retry_topic.dashboard.policies.schemas import WHAT_IF
from retry_topic.history import CANNOT_KNOW, LATEST
from retry_topic.management.policy_trials import (
    LONGEST_TOML,
    compared_with_history,
    policies_of_text,
)
from retry_topic.policy.dumping import dump_policies
from retry_topic.policy.explanation import format_time
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage, Parameter
from wheel_sched.errors import ConfigError, Rejected

_SHOWN = 50


def show(dashboard: Dashboard, request: Request) -> Response:
    """The comparison as a page. If the edited policy has mistakes, the page shows the policy and lists them."""
    text = request.query_params.get("policy")
    found, problems = None, list[str]()
    present = present_policies(dashboard)
    toml = dump_policies(present)
    if text is not None:
        try:
            edited = policies_of_text(text)
        except ConfigError as error:
            problems = error.problems
        else:
            found = compared_with_history(dashboard.store, present, edited)
    values = {
        "text": (toml if text is None else text)[:LONGEST_TOML],
        "cut": text is None and len(toml) > LONGEST_TOML,
        "problems": problems,
        "comparison": found,
        "first": "" if found is None else format_time(found.found.first_ms or 0),
        "last": "" if found is None else format_time(found.found.last_ms or 0),
        "topics": list(found.found.topics.items())[:_SHOWN] if found is not None else [],
        "cannot_know": CANNOT_KNOW,
        "longest": LONGEST_TOML,
        "most": LATEST,
    }
    return dashboard.page(request, "retry_topic/what_if.html", values, 400 if problems else 200)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The comparison as data for the JSON API.

    Raises:
        Rejected: the query has no policy, or the policy has mistakes.
    """
    text = request.query_params.get("policy")
    if text is None:
        raise Rejected("expected the parameter policy with a policy file as TOML")
    with refusing():
        edited = policies_of_text(text)
    found = compared_with_history(dashboard.store, present_policies(dashboard), edited).as_dict()
    # a recorded topic name may hold lone surrogates, which cannot be encoded in UTF-8
    topics = {name.encode("utf-8", "backslashreplace").decode(): one for name, one in found["topics"].items()}
    return {**found, "topics": topics}


PAGES = (DashboardPage("/what-if", show),)
CALLS = (
    ApiCall(
        "/policies/what-if",
        answer,
        "What other policies would have done with the latest recorded attempts",
        WHAT_IF,
        (Parameter("policy", f"a policy file as TOML, at most {LONGEST_TOML:,} characters; it is not stored"),),
    ),
)
