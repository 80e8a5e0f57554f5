"""Measures what it costs to store why messages failed: bytes per message, and processor time per failed attempt.

    python -m benchmarks.failures [COUNT]

It lets COUNT messages (20,000) fail once in a handler seven calls deep, and stores them on an embedded server three
times: with failed attempts and tracebacks, with failed attempts only, and with neither. It prints the memory that the
server uses for each waiting message, and the time that consumer and intake need for each failed attempt: with and
without tracebacks, and for the intake also with its cache of decisions. The times are processor times of one thread,
without a broker or a store: the consumer makes the retry record, and the intake makes the item to store.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.config import ConsumerConfig
from retry_topic.consumer.outcome import FailureLog, Outcomes
from retry_topic.intake.plan import plan
from retry_topic.intake.records import Known, Rules
from retry_topic.intake.templates import Templates
from retry_topic.message import Message, Source
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, lighter
from retry_topic.policy import PolicySet
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore, Item, open_store
from wheel_sched.store.embedded import EmbeddedServer

_NOW_MS = 1_767_225_600_000
_AT_ONCE = 250
_LEVELS = 6


def charge(order: int, level: int) -> None:
    if level == 0:
        raise TimeoutError(f"no answer from the bank about order {order}")
    charge(order, level - 1)


def failed_records(count: int, *, keep_tracebacks: bool) -> tuple[list[Message], float]:
    """The retry records of `count` first failures, and the seconds that making one takes."""
    outcomes = Outcomes("billing", ConsumerConfig(keep_tracebacks=keep_tracebacks), FailureLog(), None)
    made: list[Message] = []
    spent_ns = 0
    for number in range(count):
        delivery = Delivery(
            Message("orders", b"%0256d" % number, b"%d" % number, source=Source("orders", 0, f"{number}", _NOW_MS)),
            None,
        )
        try:
            charge(number, _LEVELS)
        except TimeoutError as error:
            began_ns = time.thread_time_ns()
            forward = outcomes.raised(delivery, RetryState(), _NOW_MS, error).forward
            spent_ns += time.thread_time_ns() - began_ns
            assert forward is not None  # a failure always has a record
            made.append(replace(forward, source=Source("billing.retry", 0, f"{number}", _NOW_MS)))
    return made, spent_ns / count / 1e9


def lightened(items: list[Item], steps: int) -> list[Item]:
    """The items with fewer headers about failures: 1 step removes the tracebacks, 2 steps also the failed attempts."""
    made = []
    for item in items:
        message = decode_body(item.body)
        for _ in range(steps):
            message = lighter(message) or message
        made.append(replace(item, body=encode_body(message)))
    return made


def items_of(made: list[Message], *, cached: bool) -> tuple[list[Item], float]:
    """The items that the intake makes of retry records, and the processor time in seconds for each item.

    `cached`: whether the intake uses its cache of decisions about similar failures.
    """
    policies, rng = PolicySet(), Random(0)
    rules = Rules("billing", policies, "billing.redelivery", True, None, False, (), 0, rng)
    known = Templates(policies, rng) if cached else None
    items: list[Item] = []
    began_ns = time.thread_time_ns()
    for start in range(0, len(made), _AT_ONCE):
        deliveries = [Delivery(one, None) for one in made[start : start + _AT_ONCE]]
        items += plan(deliveries, Known(), _NOW_MS, rules, templates=known).items
    return items, (time.thread_time_ns() - began_ns) / len(made) / 1e9


def bytes_each(store: DelayStore, used: Callable[[], int], items: list[Item]) -> float:
    """Store the items. Returns how many bytes of memory the server needs for each item.

    `used`: returns how many bytes the server uses.
    """
    before = used()
    for start in range(0, len(items), _AT_ONCE):
        store.schedule(items[start : start + _AT_ONCE])
    return (used() - before) / len(items)


def measured(items: list[Item]) -> float:
    import redis  # only this part needs a server

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer.open(folder) as server,
        open_store(server.url) as store,
    ):
        client = redis.Redis.from_url(server.url)
        return bytes_each(store, lambda: int(client.info("memory")["used_memory"]), items)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    logger_of("retry_topic.consumer").setLevel("ERROR")
    print(f"{count:,} messages, {_LEVELS + 1} calls deep")
    for keep in (False, True):
        made, consumer_s = failed_records(count, keep_tracebacks=keep)
        items, intake_s = items_of(made, cached=False)
        _, cached_s = items_of(made, cached=True)
        times = f"consumer {consumer_s * 1e6:.1f} us, intake {intake_s * 1e6:.1f} us, cached {cached_s * 1e6:.1f} us"
        print(f"{'with' if keep else 'without'} tracebacks, for each failed attempt: {times}")
    for steps, what in enumerate(("both", "failed attempts, no traceback", "neither")):
        stored = lightened(items, steps)
        body = sum(len(item.body) for item in stored) / count
        print(f"{what}: {measured(stored):.0f} bytes for each waiting message (its body has {body:.0f})")


if __name__ == "__main__":
    main()
