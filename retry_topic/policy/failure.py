"""The failure: everything that a policy may use for its decision.

A failure is made in one of two places: in the consumer, from the exception that the handler raised (`failure_of`), or
in the retry service, from the headers that the consumer wrote (`failure_from`). `decide` trusts none of the values and
clamps each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from retry_topic.policy.retry_after import parse_retry_after

LEAST_STATUS, MOST_STATUS = 100, 599  # of HTTP

if TYPE_CHECKING:
    from retry_topic.message.headers import RetryState


@dataclass(slots=True)
class Failure:
    """One failed delivery. Not frozen: each message makes one, and a frozen dataclass takes three times as long.

    Args:
        attempt: number of the delivery that failed, 1 for the first. Defaults to 1.
        first_failed_ms: epoch ms of the message's first failure. Defaults to None (this is the first).
        previous_delay_ms: the delay before this delivery. Defaults to None (there was none).
        error_class: fully qualified class of the error; "" for a verdict without an error. Defaults to "".
        error_mro: fully qualified parent classes, nearest first. Defaults to none.
        message: text of the error. Defaults to "".
        status: HTTP status. Defaults to None (there was none).
        retry_after_ms: wait that the handler or the remote side asked for. Defaults to None.
        verdict: what the return value of the handler asked for. Defaults to None (the handler raised).
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
    """The failure for an exception.

    Errors of requests, httpx, aiohttp and urllib hold the HTTP status and `Retry-After` themselves or on `response`;
    both places are searched. An explicit `status` wins.
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
    """The failure in the headers of a message in a retry topic. `state.attempt` is the attempt that failed."""
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
    """`str(error)`; also works when the error's own `__str__` fails."""
    try:
        return str.__str__(str(error))  # `__str__` may return a subclass of str with foreign code
    except BaseException:  # the error class is foreign code; it may even raise SystemExit
        return "(message unavailable)"


def _attribute(carrier: Any, name: str) -> Any:
    try:
        return getattr(carrier, name, None)
    except BaseException:  # httpx raises RuntimeError for unset properties; other libraries may raise anything
        return None


def _status(carriers: tuple[Any, ...]) -> int | None:
    for carrier in carriers:
        for name in ("status_code", "status", "code"):
            value = _attribute(carrier, name)
            if isinstance(value, int) and not isinstance(value, bool) and LEAST_STATUS <= value <= MOST_STATUS:
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
