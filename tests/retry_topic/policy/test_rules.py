"""Rules of a policy: which failures they match, and in which order."""

from __future__ import annotations

import pytest

from retry_topic.policy import Failure, Rule, first_match
from retry_topic.policy.rules import status_range
from wheel_sched.errors import ConfigError

TIMEOUT = Failure(
    error_class="requests.exceptions.ConnectTimeout",
    error_mro=("requests.exceptions.Timeout", "builtins.OSError", "builtins.Exception"),
)


def matches(failure: Failure, *errors: str) -> bool:
    return first_match([Rule(errors=errors)], failure) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "ConnectTimeout",
        "requests.exceptions.ConnectTimeout",
        "requests.*",
        "*Timeout",
        "Timeout",
        "OSError",
        "builtins.OSError",
        "*.exceptions.Connect*",
        "Connec?Timeout",
    ],
)
def test_names_parents_and_wildcards_match(pattern: str) -> None:
    """A pattern matches the simple or full name of the error's class or of a parent, with or without wildcards."""
    assert matches(TIMEOUT, pattern)


@pytest.mark.parametrize("pattern", ["connecttimeout", "requests", "exceptions.ConnectTimeout", "Connect", "httpx.*"])
def test_parts_of_names_and_other_cases_do_not_match(pattern: str) -> None:
    """A pattern must match a whole name, and case matters."""
    assert not matches(TIMEOUT, pattern)


def test_a_failure_without_error_matches_no_pattern() -> None:
    """A verdict without an exception does not match even the pattern `*`."""
    assert not matches(Failure(), "*")


def test_the_first_rule_that_matches_wins() -> None:
    """The first matching rule counts, not the most specific one."""
    rules = [Rule(errors=("OSError",), name="wide"), Rule(errors=("ConnectTimeout",), name="narrow")]
    match = first_match(rules, TIMEOUT)
    assert match is not None
    assert (match.number, match.rule.name) == (1, "wide")
    assert (match.pattern, match.subject) == ("OSError", "builtins.OSError")


def test_the_class_itself_is_named_before_its_parents() -> None:
    """The explanation names the nearest class that matches."""
    match = first_match([Rule(errors=("Exception", "requests.*"))], TIMEOUT)
    assert match is not None
    assert match.subject == "requests.exceptions.ConnectTimeout"


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [(429, 429, True), (429, 430, False), ("5xx", 599, True), ("5xx", 499, False), ("500-503", 503, True)],
)
def test_statuses_match_by_number_family_and_range(spec: int | str, status: int, expected: bool) -> None:
    """A status is matched by a number (`429`), a class (`5xx`) or a range (`500-503`)."""
    assert (first_match([Rule(statuses=(spec,))], Failure(status=status)) is not None) is expected


def test_a_rule_with_errors_and_statuses_needs_both() -> None:
    """A rule with errors and statuses matches if one of its errors and one of its statuses match."""
    rule = Rule(errors=("Timeout", "HTTPError"), statuses=(503, 504))
    assert first_match([rule], Failure(error_class="x.HTTPError", status=504)) is not None
    assert first_match([rule], Failure(error_class="x.HTTPError", status=500)) is None
    assert first_match([rule], Failure(error_class="x.Other", status=504)) is None
    assert first_match([rule], Failure(error_class="x.HTTPError")) is None


@pytest.mark.parametrize("status", ["600", "6xx", "503-500", "5XX", "", 99, True, "abc"])
def test_nonsense_is_no_status(status: int | str) -> None:
    """Statuses that are out of range, reversed or invalid match nothing."""
    assert status_range(status) is None


def test_all_mistakes_of_a_rule_are_named() -> None:
    """One error lists all wrong patterns, statuses, numbers and contradictions."""
    with pytest.raises(ConfigError) as caught:
        Rule(errors=("a[b", "x..y"), statuses=(700,), name="<b>", dead=True, max_attempts=0, max_age_ms=-1)
    assert len(caught.value.problems) == 7


def test_a_bare_string_is_not_taken_letter_by_letter() -> None:
    """`errors="ValueError"` is an error. It is not read as ten patterns of one letter."""
    with pytest.raises(ConfigError, match="expected errors to be a tuple, got: 'ValueError'"):
        Rule(errors="ValueError")  # type: ignore[arg-type]


def test_a_delay_in_another_form_is_refused() -> None:
    """A number is refused as a delay, because its unit is not known."""
    with pytest.raises(ConfigError, match="expected delay to be one of Fixed, Linear, Exponential"):
        Rule(errors=("ValueError",), delay=5)  # type: ignore[arg-type]


def test_a_rule_that_matches_nothing_is_refused() -> None:
    """A rule without errors and statuses is an error."""
    with pytest.raises(ConfigError, match="at least one error pattern or status"):
        Rule()
