"""Retry policies: they decide about failed messages, without side effects. A policy is data: it has a version, a file
format and an explanation for each decision."""

from retry_topic.policy.decision import DeadDecision, DeadReason, Decision, RetryDecision, Why, decide, decide_by
from retry_topic.policy.delays import Decorrelated, Delay, Draw, Exponential, Fixed, Jitter, Linear, Listed
from retry_topic.policy.dumping import content_hash, dump_policies
from retry_topic.policy.explanation import chosen_by, explain
from retry_topic.policy.failure import Failure, class_name, failure_from, failure_of
from retry_topic.policy.fair import Fair
from retry_topic.policy.flow import Breaker, Budget, Rate
from retry_topic.policy.loading import load_policies
from retry_topic.policy.model import PolicySet, RetryPolicy
from retry_topic.policy.plot import plot
from retry_topic.policy.retry_after import parse_retry_after
from retry_topic.policy.rules import Match, Rule, first_match
from retry_topic.policy.simulation import Simulation, Spread, Step, simulate
from wheel_sched.duration import format_duration, parse_duration

__all__ = [
    "Breaker",
    "Budget",
    "DeadDecision",
    "DeadReason",
    "Decision",
    "Decorrelated",
    "Delay",
    "Draw",
    "Exponential",
    "Failure",
    "Fair",
    "Fixed",
    "Jitter",
    "Linear",
    "Listed",
    "Match",
    "PolicySet",
    "Rate",
    "RetryDecision",
    "RetryPolicy",
    "Rule",
    "Simulation",
    "Spread",
    "Step",
    "Why",
    "chosen_by",
    "class_name",
    "content_hash",
    "decide",
    "decide_by",
    "dump_policies",
    "explain",
    "failure_from",
    "failure_of",
    "first_match",
    "format_duration",
    "load_policies",
    "parse_duration",
    "parse_retry_after",
    "plot",
    "simulate",
]
