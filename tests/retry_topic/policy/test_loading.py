"""Policy files: strict loading, all mistakes in one error, and policies that are read back as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.policy import (
    Decorrelated,
    Exponential,
    Fixed,
    Linear,
    Listed,
    PolicySet,
    RetryPolicy,
    Rule,
    content_hash,
    dump_policies,
    load_policies,
)
from retry_topic.policy.delays import KINDS
from wheel_sched.errors import ConfigError

GOOD = """
[default]
version = 3
max_attempts = 5
max_age = "1h"
delay = { kind = "exponential", base = "500ms", factor = 1.5, cap = "PT5M", jitter = "equal" }

[[default.rule]]
name = "bad input"
error = ["ValueError", "pydantic.*"]
dead = true

[topic.orders]
max_attempts = "unlimited"

[topic."orders.eu"]
name = "eu"
version = 9
retry_after_max = "2h"

[[topic."orders.eu".rule]]
status = [429, "5xx"]
max_age = "2d"
[topic."orders.eu".rule.delay]
kind = "list"
delays = ["1s", "1m"]
"""

FIVE_MISTAKES = """
[default]
max_atempts = 5
max_age = 3600

[topic.orders.delay]
kind = "exponential"
base = "10m"
cap = "5m"

[[topic.orders.rule]]
error = "ValueError"
dead = true

[[topic.orders.rule]]
error = "requests.["
delay = { kind = "no-such-kind" }
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_policies(text)
    return caught.value.problems


def test_a_file_gives_a_policy_for_every_topic() -> None:
    """Topics in the file have their own policies. All others have the default policy."""
    policies = load_policies(GOOD)
    default = policies.for_topic("anything")
    assert default.ident == "default@3"
    assert default.delay == Exponential(500, 1.5, 300_000, "equal")
    assert default.rules == (Rule(errors=("ValueError", "pydantic.*"), name="bad input", dead=True),)
    eu = policies.for_topic("orders.eu")
    assert (eu.ident, eu.retry_after_max_ms) == ("eu@9", 7_200_000)
    assert eu.rules == (Rule(statuses=(429, "5xx"), max_age_ms=172_800_000, delay=Listed((1_000, 60_000))),)


def test_a_topic_inherits_what_it_does_not_say() -> None:
    """A topic takes a missing key from the default policy, except for the name."""
    policies = load_policies(GOOD)
    orders = policies.for_topic("orders")
    assert (orders.name, orders.version, orders.max_attempts) == ("orders", 3, None)
    assert (orders.delay, orders.rules) == (policies.default.delay, policies.default.rules)


def test_an_empty_file_gives_the_built_in_default() -> None:
    """Every key may be left out. An empty file gives the built-in policy."""
    assert load_policies("") == PolicySet()


def test_five_mistakes_are_named_at_once_with_their_places() -> None:
    """One error lists all mistakes of a policy file, each with its place."""
    assert problems_of(FIVE_MISTAKES) == [
        "[default] expected keys name, version, max_attempts, max_age, retry_after_max, delay, spread, rate, burst, "
        "budget, breaker, fair, collapse, debounce, rule, got: max_atempts; did you mean max_attempts?",
        '[default] expected max_age to be a duration such as "90s", got: 3600',
        "[topic.orders.delay] expected cap to be at least base (10m), got: 5m",
        f"[topic.orders.rule.2.delay] expected kind to be one of {', '.join(KINDS)}, got: 'no-such-kind'",
        "[topic.orders.rule.2] expected error to be a class name or a pattern such as requests.*, got: 'requests.['",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("default = 5", "expected default to be a table, got: 5"),
        ("[topik]", "expected keys default, topic, got: topik; did you mean topic?"),
        ("[topic]\norders = 5", "[topic.orders] expected a table, got: 5"),
        ("[default]\nmax_attempts = true", "[default] expected max_attempts to be an integer, got: True"),
        ("[default]\nmax_attempts = 0", "[default] expected max_attempts to be an integer from 1 to 1000000, got: 0"),
        ("[default]\nversion = 1.5", "[default] expected version to be an integer, got: 1.5"),
        ("[default]\nname = 'a@b'", "[default] expected name to be 1 to 249 of the characters"),
        ("[default]\nmax_age = '-1s'", "[default] max_age: expected a duration"),
        ("[default]\nmax_age = 'unlimited'\nmax_attempts = 'unlimited'", "[default] expected max_attempts or max_age"),
        ("[default]\nrule = 5", "[default] expected rule to be a list of tables"),
        ("[default]\nrule = [5]", "[default.rule.1] expected a table, got: 5"),
        ("[default]\nrule = [{error = 5}]", "[default.rule.1] expected error to be a text or a list of texts, got: 5"),
        ("[default]\nrule = [{error = []}]", "[default.rule.1] expected at least one error pattern or status"),
        ("[default]\nrule = [{status = 700}]", "[default.rule.1] expected status to be 100 to 599"),
        ("[default]\nrule = [{error = 'A', dead = 1}]", "[default.rule.1] expected dead to be true or false, got: 1"),
        ("[default]\ndelay = '5s'", "[default.delay] expected a table, got: '5s'"),
        ("[default]\ndelay = {}", "[default.delay] expected kind to be one of"),
        ("[default]\ndelay = {kind = [1]}", "[default.delay] expected kind to be one of"),
        ("[default]\ndelay = {kind = 'full-jitter'}", '; write kind = "exponential", jitter = "full"'),
        (
            "[default]\ndelay = {kind = 'fixed', cap = '1s'}",
            "[default.delay] expected keys kind, base, jitter, got: cap",
        ),
        ("[default]\ndelay = {kind = 'fixed', base = '5x'}", "[default.delay] base: expected a duration"),
        ("[default]\ndelay = {kind = 'exponential', factor = 0.5}", "[default.delay] expected factor to be a number"),
        ("[default]\ndelay = {kind = 'exponential', factor = 'x'}", "[default.delay] expected factor to be a number"),
        ("[default]\ndelay = {kind = 'exponential', factor = nan}", "[default.delay] expected factor to be a number"),
        ("[default]\ndelay = {kind = 'exponential', jitter = 'half'}", "[default.delay] expected jitter to be one of"),
        ("[default]\ndelay = {kind = 'list'}", "[default.delay] expected delays to be given, got: none"),
        (
            "[default]\ndelay = {kind = 'list', delays = [1]}",
            "[default.delay] expected delays to be a list of durations",
        ),
        ("[default]\ndelay = {kind = 'list', delays = ['1s', 'x']}", "[default.delay] delays.2: expected a duration"),
        ("[topic.'a b']", "[topic] expected topic to be 1 to 249 of the characters"),
        ('[topic."a.b"]\nversion = 0', '[topic."a.b"] expected version to be an integer from 1'),
        ("[default", "expected the policies to be TOML, got: "),
    ],
)
def test_each_mistake_has_its_own_words_and_is_one_problem(text: str, problem: str) -> None:
    """Each mistake is reported once, with its place, the expected value and the found value."""
    problems = problems_of(text + "\n")
    assert len(problems) == 1, problems
    assert problem in problems[0]


def test_a_bad_base_does_not_hide_a_bad_cap() -> None:
    """All wrong values of a delay are reported, and only these."""
    text = "[default.delay]\nkind = 'exponential'\nbase = 'x'\ncap = 'y'\nfactor = 0\n"
    assert [problem.split()[1] for problem in problems_of(text)] == ["base:", "cap:", "expected"]


def test_a_path_is_read_as_a_file(tmp_path: Path) -> None:
    """The file's path may be a `Path` or a text."""
    path = tmp_path / "policies.toml"
    path.write_text(GOOD, encoding="utf-8")
    assert load_policies(path) == load_policies(str(path)) == load_policies(GOOD)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error names the policy file that could not be read."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml to be a readable policy file"):
        load_policies(tmp_path / "nowhere.toml")


def test_a_topic_without_rules_keeps_none_through_a_round_trip() -> None:
    """A topic without rules is written with `rule = []`, so that it does not inherit the default policy's rules."""
    rule = Rule(errors=("A",), dead=True)
    policies = PolicySet(RetryPolicy(rules=(rule,)), {"orders": RetryPolicy("orders")})
    assert load_policies(dump_policies(policies)) == policies


MS = st.integers(0, 10**9)
JITTERS = st.sampled_from(["none", "full", "equal"])
FACTORS = st.integers(1, 100) | st.floats(1, 100)


def capped(cls: Any, *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Delays whose cap is above their base."""
    return st.builds(
        lambda base, extra, rest: cls(base, *rest[:1], base + extra + 1, *rest[1:]), MS, MS, st.tuples(*more)
    )


DELAYS = st.one_of(
    st.builds(Fixed, MS, JITTERS),
    capped(Linear, MS, JITTERS),
    capped(Exponential, FACTORS, JITTERS),
    capped(Decorrelated),
    st.builds(Listed, st.lists(MS, min_size=1, max_size=5).map(tuple), JITTERS),
)
PATTERNS = st.lists(st.from_regex(r"\A[a-zA-Zé_*?]{1,9}(\.[a-zA-Z$*]{1,9}){0,2}\Z"), min_size=1, max_size=3).map(tuple)
STATUSES = st.lists(st.integers(100, 599) | st.sampled_from(["4xx", "500-503"]), max_size=3).map(tuple)
NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z")
COUNTS = st.integers(1, 1_000_000)
RULES = st.builds(Rule, PATTERNS, STATUSES, st.just("a rule"), st.just(True)) | st.builds(
    Rule, PATTERNS, STATUSES, st.just(""), st.just(False), st.none() | DELAYS, st.none() | COUNTS, st.none() | MS
)
POLICIES = st.builds(
    RetryPolicy, NAMES, COUNTS, DELAYS, st.none() | COUNTS, MS, MS, st.lists(RULES, max_size=3).map(tuple)
)


@settings(deadline=None)
@given(st.builds(PolicySet, POLICIES, st.dictionaries(NAMES, POLICIES, max_size=3)))
def test_what_is_written_is_read_back_the_same(policies: PolicySet) -> None:
    """Policies that are dumped and loaded are equal."""
    assert load_policies(dump_policies(policies)) == policies


def test_the_content_hash_shows_any_change() -> None:
    """Policies with different content have different hashes, even with the same version."""
    assert content_hash(RetryPolicy()) == content_hash(RetryPolicy())
    assert content_hash(RetryPolicy()) != content_hash(RetryPolicy(max_attempts=9))
    assert len(content_hash(RetryPolicy())) == 12


def test_a_policy_set_does_not_change_through_the_callers_dict() -> None:
    """The policy set keeps a copy of the caller's dict."""
    topics = {"orders": RetryPolicy("orders")}
    policies = PolicySet(topics=topics)
    topics.clear()
    assert policies.for_topic("orders").name == "orders"


def test_any_text_survives_writing_and_reading() -> None:
    """Header names with characters outside of the basic plane and fair keys with control characters become TOML."""
    text = """
    [topic.orders.fair]
    key = "header:\U0001f600"
    weights = { "b\\u007fc \U0001f600" = 3 }
    """
    policies = load_policies(text)
    assert load_policies(dump_policies(policies)) == policies
    assert dict(policies.topics["orders"].fair.weights) == {"b\x7fc \U0001f600": 3}
