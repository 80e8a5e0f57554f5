"""The JSON of messages. It has payloads, keys and header values only if the dashboard shows them."""

from __future__ import annotations

from typing import Any

from retry_topic.management.explaining import ExplainedMessage
from retry_topic.management.filters import ListedMessage
from wheel_sched.dashboard.schemas import (
    INTEGER,
    INTEGER_OR_NONE,
    TEXT,
    TEXT_OR_NONE,
    Schema,
    array,
    nullable,
    record,
)

WHOLE_VALUE = 1_000_000
"""Bytes of the largest payload that an answer contains."""

ITEM: Schema = record(
    id=TEXT,
    state={"enum": ["due", "leased", "held", "dead"]},
    topic=TEXT,
    attempt=INTEGER,
    max_attempts=INTEGER_OR_NONE,
    error=TEXT_OR_NONE,
    error_class=TEXT_OR_NONE,
    fingerprint=TEXT_OR_NONE,
    reason=TEXT_OR_NONE,
    policy=TEXT_OR_NONE,
    replays=INTEGER,
    group=TEXT_OR_NONE,
    key=TEXT_OR_NONE,
    bytes=INTEGER_OR_NONE,
)
ONE_ITEM: Schema = record(
    **ITEM["properties"],
    why=TEXT,
    version=INTEGER,
    delay_ms=INTEGER_OR_NONE,
    target=TEXT_OR_NONE,
    origin=record(topic=TEXT_OR_NONE, partition=INTEGER_OR_NONE, offset=TEXT_OR_NONE, timestamp_ms=INTEGER_OR_NONE),
    headers=array({"type": "array", "prefixItems": [TEXT, TEXT_OR_NONE], "minItems": 2, "maxItems": 2}),
    failed_attempts=array(record(number=INTEGER, at_ms=INTEGER, error_class=TEXT_OR_NONE, delay_ms=INTEGER_OR_NONE)),
    failed_attempts_dropped=INTEGER,
    traceback=TEXT_OR_NONE,
    reference=TEXT_OR_NONE,
    value_base64=TEXT_OR_NONE,
    next_decision=nullable(record(attempt=INTEGER, policy=TEXT, words=TEXT)),
)


def item_as_dict(entry: ListedMessage, *, show_payloads: bool) -> dict[str, Any]:
    """A message as an element of a list."""
    found = entry.as_dict()
    return found if show_payloads else {**found, "key": None}


def one_as_dict(found: ExplainedMessage, *, show_payloads: bool) -> dict[str, Any]:
    """Everything about one message. A payload of over a million bytes is left out."""
    whole = found.as_dict()
    if not show_payloads:
        whole["headers"] = [[name, None] for name, _ in whole["headers"]]
        whole["key"] = None
    if not show_payloads or (whole["bytes"] or 0) > WHOLE_VALUE:
        whole["value_base64"] = None
    return whole
