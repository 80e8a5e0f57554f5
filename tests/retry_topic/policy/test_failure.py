"""How a failure is read from an exception and from headers."""

from __future__ import annotations

import pytest

from retry_topic.message.headers import RetryState
from retry_topic.policy import failure_from, failure_of, parse_retry_after
from wheel_sched.duration import LONGEST_MS

NOW_MS = 784_111_777_000  # 1994-11-06T08:49:37Z, the date of the RFC's own example


class Response:
    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status_code, headers


class HTTPError(OSError):
    def __init__(self, response: Response) -> None:
        super().__init__("too many requests")
        self.response = response


class Hostile(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("unset")

    def __str__(self) -> str:
        raise RuntimeError("broken")


def test_an_exception_names_itself_and_its_parents() -> None:
    """The class and its parents have full names, the nearest parent first, without `object`."""
    failure = failure_of(FileNotFoundError("nope"), now_ms=0, attempt=3)
    assert failure.error_class == "builtins.FileNotFoundError"
    assert failure.error_mro == ("builtins.OSError", "builtins.Exception", "builtins.BaseException")
    assert (failure.message, failure.attempt, failure.status) == ("nope", 3, None)


def test_status_and_retry_after_are_read_from_the_response() -> None:
    """Status and `Retry-After` of an HTTP error are read from its attribute `response`."""
    failure = failure_of(HTTPError(Response(429, {"Retry-After": "7"})), now_ms=NOW_MS)
    assert (failure.status, failure.retry_after_ms) == (429, 7_000)


def test_a_given_status_wins() -> None:
    """A status that the caller gives replaces the status of the error."""
    assert failure_of(HTTPError(Response(429, {})), now_ms=NOW_MS, status=503).status == 503


def test_a_hostile_exception_cannot_break_the_reading() -> None:
    """An error whose properties and `__str__` raise can still be read."""
    failure = failure_of(Hostile(), now_ms=0)
    assert failure.message == "(message unavailable)"


def test_headers_without_a_first_failure_mean_now() -> None:
    """If the headers have no time of the first failure, `failure_from` takes `now_ms` as that time."""
    failure = failure_from(RetryState(), now_ms=5)
    assert (failure.attempt, failure.first_failed_ms) == (1, 5)


def test_headers_carry_the_whole_failure() -> None:
    """The policy gets every value that the consumer wrote to the headers."""
    state = RetryState(
        attempt=4,
        first_failed_ms=1,
        delay_ms=2,
        error_class="a.B",
        error_mro=("a.C",),
        error_message="m",
        error_status=503,
        retry_after_ms=9,
        verdict="retry",
    )
    failure = failure_from(state, now_ms=5)
    assert (failure.attempt, failure.first_failed_ms, failure.previous_delay_ms) == (4, 1, 2)
    assert (failure.error_class, failure.error_mro, failure.message) == ("a.B", ("a.C",), "m")
    assert (failure.status, failure.retry_after_ms, failure.verdict) == (503, 9, "retry")


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("120", 120_000),
        (" 0 ", 0),
        ("1.2345", 1_235),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10_000),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10_000),
        ("Sun Nov  6 08:49:47 1994", 10_000),
        ("Sun, 06 Nov 1994 08:49:27 GMT", 0),
        ("999999999999999999", LONGEST_MS),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_MS),
        ("9" * 5_000, None),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Nov 1994 08:49:47 GMT", None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(text: str, expected_ms: int | None) -> None:
    """Seconds and the three HTTP date formats are parsed. A past date gives 0, and an invalid text gives None."""
    assert parse_retry_after(text, NOW_MS) == expected_ms
