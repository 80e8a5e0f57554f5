"""The page and the calls about the policy of one topic: it explains a decision, and simulates traffic."""

from __future__ import annotations

import random
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.policies.charts import delay_chart, load_chart
from retry_topic.dashboard.policies.reading import (
    class_of,
    failure_of,
    present_policies,
    refusing,
    seed_of,
    source_of,
    status_of,
    traffic_of,
)
from retry_topic.dashboard.policies.schemas import DECISION, LOAD
from retry_topic.management.policy_trials import ExplainedDecision, explained_decision, outlook, picture
from retry_topic.policy import PolicySet
from retry_topic.policy.load_simulation import (
    MAX_LOAD_ATTEMPTS,
    MAX_MESSAGES,
    MAX_PER_SECOND,
    MAX_SECONDS,
    LoadSimulation,
    simulate_load,
)
from retry_topic.policy.rules import MAX_ATTEMPTS
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage, NotFound, Parameter

_LONGEST_TOPIC = 1_000
_BOUNDS = {
    "messages": MAX_MESSAGES,
    "attempts": MAX_LOAD_ATTEMPTS,
    "seconds": MAX_SECONDS,
    "per_second": MAX_PER_SECOND,
    "attempt": MAX_ATTEMPTS,
}


def policies_of(dashboard: Dashboard, request: Request) -> tuple[str, PolicySet]:
    """The topic in the address, and the policies.

    Raises:
        NotFound: the name is longer than a topic's name can be.
        ConfigError: the policy file of the settings has mistakes.
    """
    topic: str = request.path_params["topic"]
    if len(topic) > _LONGEST_TOPIC:
        raise NotFound(f"no topic has a name of {len(topic):,} characters")
    return topic, present_policies(dashboard)


def explained(dashboard: Dashboard, request: Request) -> ExplainedDecision:
    """What the policy decides about the failure in the query. The random part of the delay is always the same.

    Raises:
        Rejected: the query has a mistake.
    """
    topic, policies = policies_of(dashboard, request)
    now_ms = dashboard.store.now_ms()
    return explained_decision(policies.for_topic(topic), failure_of(request, now_ms), now_ms, random.Random(0))


def simulated(dashboard: Dashboard, request: Request) -> LoadSimulation:
    """What the policy does with the traffic in the query.

    Raises:
        Rejected: the query has a mistake, or the simulation would take too long.
    """
    topic, policies = policies_of(dashboard, request)
    traffic = traffic_of(request)
    with refusing():
        return simulate_load(policies.for_topic(topic), traffic, seed_of(request))


def show(dashboard: Dashboard, request: Request) -> Response:
    """The policy of a topic as a page."""
    topic, policies = policies_of(dashboard, request)
    policy = policies.for_topic(topic)
    one = picture(topic, policy)
    asked, values = request.query_params, dict[str, Any](load=None, load_chart=None, decision=None, outlook=None)
    if asked.get("form") == "simulate":
        values["load"] = found = simulated(dashboard, request)
        values["load_chart"] = load_chart(found)
    elif asked.get("form") == "explain":
        values["decision"] = explained(dashboard, request)
        values["outlook"] = outlook(policy, class_of(request), status_of(request))
    values |= {
        "topic": topic,
        "own": topic in policies.topics,
        "source": source_of(dashboard),
        "picture": one,
        "chart": delay_chart(one),
        "asked": {name: asked.get(name, "")[:500] for name in _FIELDS},
        "bounds": _BOUNDS,
    }
    return dashboard.page(request, "retry_topic/policy.html", values)


def _explain_answer(dashboard: Dashboard, request: Request) -> Any:
    return explained(dashboard, request).as_dict()


def _simulate_answer(dashboard: Dashboard, request: Request) -> Any:
    return simulated(dashboard, request).as_dict()


_FIELDS = ("error", "status", "attempt", "failure_rate", "per_second", "seconds", "outage", "seed")
_FAILURE = (
    Parameter("error", "class of the error, as module.Class"),
    Parameter("status", "HTTP status of the error, 100 to 599", "integer"),
)

PAGES = (DashboardPage("/policies/{topic:path}", show),)
CALLS = (
    ApiCall(
        "/policies/{topic:path}/explain",
        _explain_answer,
        "What the policy of a topic decides about a failure",
        DECISION,
        (*_FAILURE, Parameter("attempt", "the delivery that failed; defaults to 1", "integer")),
    ),
    ApiCall(
        "/policies/{topic:path}/simulate",
        _simulate_answer,
        "What the policy of a topic does with traffic, in virtual time",
        LOAD,
        (
            Parameter("failure_rate", "probability that an attempt fails, 0 to 1; defaults to 0.3", "number"),
            Parameter("per_second", f"messages a second, up to {MAX_PER_SECOND:,}; defaults to 10", "number"),
            Parameter("seconds", f"how long messages arrive, up to {MAX_SECONDS:,}; defaults to 60", "integer"),
            Parameter("outage", "seconds at the start in which all attempts fail; defaults to 0", "integer"),
            Parameter("seed", "seed of failures and jitter; defaults to 0", "integer"),
            *_FAILURE,
        ),
    ),
)
