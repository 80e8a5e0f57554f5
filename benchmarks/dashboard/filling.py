"""Fills a namespace with messages that wait and with dead letters, as the retry service would store them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.messages import BATCH, VALUE, ids
from benchmarks.server import NAMESPACE
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.fingerprint import fingerprint
from retry_topic.message.headers import RetryState, write
from wheel_sched.store import Item, open_store

_TOPICS = [f"orders-{number}" for number in range(20)]
_ERRORS = 50  # kinds of errors in each topic, so there are a thousand groups
_PART = 50_000
_DAY_MS = 86_400_000


def fill(url: str, waiting: int, dead: int) -> None:
    """Store messages that are due over the next ten days, from an hour on, and dead letters in a thousand groups."""
    with open_store(url, namespace=NAMESPACE) as store:
        from_ms = time.time_ns() // 1_000_000 + 3_600_000
        bodies = [_body(topic, error, 1) for topic in _TOPICS for error in range(_ERRORS)]
        step_ms = 10 * _DAY_MS / max(waiting, 1)
        for at, names in _parts(waiting, "w"):
            store.schedule(
                [
                    Item(name, int(from_ms + number * step_ms), bodies[number % len(bodies)], _topic(number))
                    for number, name in enumerate(names, at)
                ]
            )
        for at, names in _parts(dead, "d"):
            store.bury(
                [
                    (
                        Item(name, from_ms, bodies[number % len(bodies)], _topic(number), (f"fp:{_print(number)}",)),
                        f"max-attempts: demo.Failure{number % _ERRORS}: no answer",
                    )
                    for number, name in enumerate(names, at)
                ]
            )


def _topic(number: int) -> str:
    return _TOPICS[number // _ERRORS % len(_TOPICS)]


def _print(number: int) -> str:
    return fingerprint(f"demo.Failure{number % _ERRORS}", "no answer")


def _parts(count: int, series: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the ids in parts of 500, each with the number of its first id. Only one part is in memory."""
    for part in range(0, count, _PART):
        names = ids(min(_PART, count - part), f"{series}{part}")
        for at in range(0, len(names), BATCH):
            yield part + at, names[at : at + BATCH]


def _body(topic: str, error: int, attempt: int) -> bytes:
    state = RetryState(
        id="benchmark",
        attempt=attempt,
        original_topic=topic,
        original_partition=0,
        original_offset="1",
        consumer_group="billing",
        error_class=f"demo.Failure{error}",
        error_message="no answer",
        error_fingerprint=fingerprint(f"demo.Failure{error}", "no answer"),
    )
    return encode_body(Message(topic, VALUE, headers=write((), state)))
