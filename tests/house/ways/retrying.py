"""Traces the retry of one message over any broker: it is published, fails once, waits, is released and is handled."""

from __future__ import annotations

import threading
import time
from typing import Any

from tracing import Tracer, wait_for

READY_S = 5.0  # a group of Kafka needs seconds until its members have their partitions
POLICIES = """
[default]
max_attempts = 3
delay = { kind = "fixed", base = "500ms", jitter = "none" }
"""


def retry(tracer: Tracer, connection: Any, ready_s: float) -> list[str]:
    """Publish a message that fails once, and wait until it is handled again. Returns what `Tracer.end` returns.

    Args:
        tracer: begins to record when consumer and service run.
        connection: an open connection of `retry_topic`.
        ready_s: the time for consumer and service to join their groups, in seconds.
    """
    from retry_topic import Consumer, RetryService, load_policies

    handled = threading.Event()
    calls: list[bytes] = []

    def handler(message: Any) -> None:
        if message.value != b"traced":
            return
        calls.append(message.value)
        if len(calls) == 1:
            raise RuntimeError("the first attempt fails")
        handled.set()

    connection.broker.create_topic("orders")
    with (
        Consumer(connection, "orders", handler, group="shipping"),
        RetryService(connection, "shipping", load_policies(POLICIES)),
    ):
        time.sleep(ready_s)
        tracer.begin()
        connection.publish("orders", b"traced")
        wait_for(handled, "the handler succeeded at the second attempt")
        return tracer.end()
