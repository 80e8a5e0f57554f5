"""The retry of one message, whatever the broker: published, failed once, kept, released, and handled."""

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


def retry(tracer: Tracer, home: Any, ready_s: float) -> list[str]:
    """Run one message through.

    Args:
        tracer: begins when all is started.
        home: an open connection of `retry_topic`.
        ready_s: how long consumer and service get to join their groups, in seconds.
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

    home.broker.create_topic("orders")
    with (
        Consumer(home, "orders", handler, group="shipping"),
        RetryService(home, "shipping", load_policies(POLICIES)),
    ):
        time.sleep(ready_s)
        tracer.begin()
        home.publish("orders", b"traced")
        wait_for(handled, "the handler succeeded at the second attempt")
        return tracer.end()
