"""The JSON schemas of the calls about policies."""

from __future__ import annotations

from wheel_sched.dashboard.schemas import (
    INTEGER,
    INTEGER_OR_NONE,
    NUMBER,
    TEXT,
    TEXT_OR_NONE,
    array,
    mapping,
    nullable,
    record,
)

_SPREAD = nullable(record(min_ms=INTEGER, p50_ms=INTEGER, p90_ms=INTEGER, max_ms=INTEGER))
_STEP = record(attempt=INTEGER, retried=INTEGER, died=mapping(INTEGER), delay=_SPREAD, elapsed=_SPREAD)
_RULE = record(number=INTEGER, name=TEXT, errors=array(TEXT), statuses=array(TEXT), does=TEXT)

POLICY = record(
    topic=TEXT_OR_NONE,
    policy=TEXT,
    text=array(TEXT),
    toml=TEXT,
    max_attempts=INTEGER_OR_NONE,
    max_age_ms=INTEGER_OR_NONE,
    delay=TEXT,
    rules=array(_RULE),
    steps=array(_STEP),
)

DECISION = record(
    decision={"enum": ["retry", "dead"]},
    reason=TEXT_OR_NONE,
    due_ms=INTEGER_OR_NONE,
    text=TEXT,
    chosen_by=TEXT,
    why=record(policy=TEXT, attempt=INTEGER, max_attempts=INTEGER_OR_NONE, delay_ms=INTEGER_OR_NONE),
)

LOAD = record(
    policy=TEXT,
    messages=INTEGER,
    attempts=INTEGER,
    load_factor=NUMBER,
    succeeded=INTEGER,
    succeeded_at=mapping(INTEGER),
    died=mapping(INTEGER),
    success_ms=nullable(record(p50=INTEGER, p90=INTEGER, p99=INTEGER)),
    bucket_ms=INTEGER,
    attempts_in=array(INTEGER),
    first_attempts_in=array(INTEGER),
    later=INTEGER,
    peak_per_second=NUMBER,
)

_DOING = record(
    retries=INTEGER, further=INTEGER, given_up=INTEGER, lost=INTEGER, undecided=INTEGER, wait_ms=INTEGER_OR_NONE
)
_TOPIC = record(
    messages=INTEGER,
    retries=INTEGER,
    succeeded=INTEGER,
    given_up=INTEGER,
    waiting=INTEGER,
    wait_ms=INTEGER_OR_NONE,
    present=_DOING,
    edited=_DOING,
    earlier=INTEGER,
    later=INTEGER,
    shift_ms=INTEGER_OR_NONE,
)

WHAT_IF = record(
    attempts=INTEGER,
    left_out=INTEGER,
    unreadable=INTEGER,
    most=INTEGER,
    first_ms=INTEGER_OR_NONE,
    last_ms=INTEGER_OR_NONE,
    total=_TOPIC,
    topics=mapping(_TOPIC),
    more_topics=INTEGER,
    cannot_know=array(TEXT),
)
