"""The failure: everything a policy may look at to decide what comes next.

A failure is a value made in one of two places: beside the handler, from the exception it raised (`failure_of`), or
in the retry service, from the headers the consumer wrote (`failure_from`). Nothing in it is trusted: `decide` clamps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from retry_topic.policy.retry_after import parse_retry_after

if TYPE_CHECKING:
    from retry_topic.message.headers import RetryState


@dataclass(slots=True)
class Failure:
    """One failed delivery. Not frozen, which would make it three times as dear: one is made for every message.

    Args:
        attempt: number of the delivery that failed, 1 for the first. Defaults to 1.
        first_failed_ms: epoch ms of the message's first failure. Defaults to None (this is the first).
        previous_delay_ms: the delay before this delivery. Defaults to None (there was none).
        error_class: fully qualified class of the error, "" when a verdict asked without one. Defaults to "".
        error_mro: fully qualified parent classes, nearest first. Defaults to none.
        message: text of the error. Defaults to "".
        status: HTTP status, when there was one. Defaults to None.
        retry_after_ms: wait asked for by the handler or the remote side. Defaults to None.
        verdict: what the handler asked for by return value. Defaults to None (it raised).
    """

    attempt: int = 1
    first_failed_ms: int | None = None
    previous_delay_ms: int | None = None
    error_class: str = ""
    error_mro: tuple[str, ...] = ()
    message: str = ""
    status: int | None = None
    retry_after_ms: int | None = None
    verdict: Literal["retry", "dead"] | None = None


def class_name(cls: type) -> str:
    """`module.Class`, the name that rules, headers and fingerprints use."""
    return f"{cls.__module__}.{cls.__qualname__}"


def failure_of(
    error: BaseException,
    *,
    now_ms: int,
    attempt: int = 1,
    first_failed_ms: int | None = None,
    previous_delay_ms: int | None = None,
    status: int | None = None,
) -> Failure:
    """The failure an exception stands for.

    The HTTP status and `Retry-After` are looked for where errors of requests, httpx, aiohttp and urllib keep
    them: on the error, or on its `response`. A `status` given wins.
    """
    carriers = (error, _attribute(error, "response"))
    return Failure(
        attempt=attempt,
        first_failed_ms=first_failed_ms,
        previous_delay_ms=previous_delay_ms,
        error_class=class_name(type(error)),
        error_mro=tuple(class_name(cls) for cls in type(error).__mro__[1:] if cls is not object),
        message=error_text(error),
        status=status if status is not None else _status(carriers),
        retry_after_ms=_retry_after_ms(carriers, now_ms),
    )


def failure_from(state: RetryState, *, now_ms: int) -> Failure:
    """The failure that the headers of a message in a retry topic tell of; `state.attempt` has just failed."""
    return Failure(
        max(1, state.attempt),
        now_ms if state.first_failed_ms is None else state.first_failed_ms,
        state.delay_ms,
        state.error_class or "",
        state.error_mro,
        state.error_message or "",
        state.error_status,
        state.retry_after_ms,
        state.verdict,
    )


def error_text(error: BaseException) -> str:
    """`str(error)`, also for errors whose own `__str__` fails."""
    try:
        return str.__str__(str(error))  # a subclass of str is code of others as well
    except BaseException:  # the handler's error class is not ours to trust, and SystemExit is an error of it
        return "(message unavailable)"


def _attribute(carrier: Any, name: str) -> Any:
    try:
        return getattr(carrier, name, None)
    except BaseException:  # httpx raises RuntimeError from unset properties, others what they like
        return None


def _status(carriers: tuple[Any, ...]) -> int | None:
    for carrier in carriers:
        for name in ("status_code", "status", "code"):
            value = _attribute(carrier, name)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
                return int(value)  # http.HTTPStatus is an int by inheritance
    return None


def _retry_after_ms(carriers: tuple[Any, ...], now_ms: int) -> int | None:
    for carrier in carriers:
        headers = _attribute(carrier, "headers")
        if isinstance(headers, Mapping) or hasattr(headers, "get"):
            try:
                text = headers.get("Retry-After") or headers.get("retry-after")
            except Exception:  # not a mapping after all
                text = None
            if isinstance(text, str) and (delay_ms := parse_retry_after(text, now_ms)) is not None:
                return delay_ms
    return None
