"""Reads the queries about policies: a failure, traffic, or a policy as TOML. Refuses wrong values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from starlette.requests import Request

from retry_topic.dashboard.opening import settings_of
from retry_topic.management.opening import policies_of
from retry_topic.policy import Failure, PolicySet
from retry_topic.policy.failure import LEAST_STATUS, MOST_STATUS
from retry_topic.policy.load_simulation import MAX_SECONDS, Traffic
from retry_topic.policy.rules import MAX_ATTEMPTS
from wheel_sched.dashboard import Dashboard
from wheel_sched.dashboard.queries import number_of
from wheel_sched.errors import ConfigError, Rejected

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LONGEST_CLASS = 500
MAX_SEED = 10**12


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a `ConfigError` in the block into `Rejected`, because a wrong value in a query is the visitor's mistake.

    Raises:
        Rejected: the block has raised a `ConfigError`. The message is the same.
    """
    try:
        yield
    except ConfigError as error:
        raise Rejected(str(error)) from error


def present_policies(dashboard: Dashboard) -> PolicySet:
    """The policies in the file that the settings name, or the built-in policy. Each call reads the file again.

    Raises:
        ConfigError: the file has mistakes. The error lists each of them.
    """
    return policies_of(settings_of(dashboard))


def source_of(dashboard: Dashboard) -> str | None:
    """The policy file of the settings; None for the built-in policy."""
    return settings_of(dashboard).policies


def failure_of(request: Request, now_ms: int) -> Failure:
    """The failure that the query describes, as if it happened at `now_ms`.

    Raises:
        Rejected: a number is out of bounds, or the class is too long.
    """
    return Failure(
        attempt=number_of(request, "attempt", 1, least=1, most=MAX_ATTEMPTS),
        first_failed_ms=now_ms,
        error_class=class_of(request),
        status=status_of(request),
    )


def class_of(request: Request) -> str:
    """The class of the error in the query; "" without one.

    Raises:
        Rejected: the class is too long.
    """
    text = request.query_params.get("error", "")
    if len(text) > _LONGEST_CLASS:
        raise Rejected(f"expected error to have at most {_LONGEST_CLASS} characters, got: {len(text):,}")
    return text


def status_of(request: Request) -> int | None:
    """The HTTP status in the query; None without one.

    Raises:
        Rejected: the status is no number from 100 to 599.
    """
    return number_of(request, "status", 0, least=LEAST_STATUS, most=MOST_STATUS) or None


def traffic_of(request: Request) -> Traffic:
    """The traffic in the query.

    Raises:
        Rejected: a value is no number, or out of bounds.
    """
    numbers = (
        decimal_of(request, "failure_rate", 0.3),
        decimal_of(request, "per_second", 10),
        number_of(request, "seconds", 60, least=1, most=MAX_SECONDS),
        number_of(request, "outage", 0, least=0, most=MAX_SECONDS),
    )
    with refusing():
        return Traffic(*numbers, class_of(request) or "builtins.Exception", status_of(request))


def seed_of(request: Request) -> int:
    """The seed in the query. Defaults to 0.

    Raises:
        Rejected: the seed is no whole number, or is too large.
    """
    return number_of(request, "seed", 0, least=0, most=MAX_SEED)


def decimal_of(request: Request, name: str, default: float) -> float:
    """A number of the query, such as 0.25. The caller must check its bounds.

    Raises:
        Rejected: the value is not such a number.
    """
    text = request.query_params.get(name, "")
    if not text:
        return default
    if _DECIMAL.fullmatch(text) is None:
        raise Rejected(f"expected {name} to be a number such as 0.25, got: {text[:40]!r}")
    return float(text)
