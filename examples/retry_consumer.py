"""A consumer whose failed messages come back on time, become dead letters and are replayed. One process, no server.

python examples/retry_consumer.py                 # in memory
python examples/retry_consumer.py embedded:./data # over a folder: messages outlive the process
"""

# ruff: noqa: T201 - an example shows what it does

from __future__ import annotations

import sys
import threading

from retry_topic import (
    Consumer,
    ConsumerConfig,
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
    Message,
    Retry,
    RetryService,
    connect,
    load_policies,
)
from retry_topic.message.headers import read

POLICIES = load_policies("""
[default]
max_attempts = 3
delay = { kind = "exponential", base = "50ms", factor = 2, jitter = "none" }

[[default.rule]]
name = "bad input never gets better"
error = "ValueError"
dead = true
""")

stock = {"bolt": 0}
ended = threading.Semaphore(0)


def ship(message: Message) -> Retry | DeadLetter | None:
    """The handler. Its return value says what happens to the message. After an exception the policy decides."""
    attempt = read(message.headers).attempt + 1
    item = message.value.decode()
    print(f"attempt {attempt}: {item}")
    if item == "unicorn":
        return DeadLetter("we do not sell those")
    if item == "???":
        raise ValueError(f"cannot read {item}")  # fatal by the rule above
    if item == "nut" and attempt == 1:
        return Retry(after=0.1, reason="the nuts are being counted")
    if not stock.get(item, 1):
        raise LookupError(f"no {item} in stock")  # 50 ms, 100 ms, then dead
    print(f"shipped: {item}")
    ended.release()
    return None


def main(url: str = "memory:") -> None:
    with (
        connect(url) as connection,
        Consumer(connection, "orders", ship, group="shipping", config=ConsumerConfig(concurrency=1)),
        RetryService(connection, "shipping", POLICIES, seen=lambda taken: ended.release() if taken.dead else None),
    ):
        for item in ("screw", "nut", "bolt", "unicorn", "???"):
            connection.publish("orders", item.encode())
        for _ in range(5):
            ended.acquire(timeout=60)
        letters = DeadLetters(connection)
        for group in letters.groups():
            print(f"dead: {group.count} x {group.sample.reason}")
        stock["bolt"] = 100
        replayed = letters.replay(DeadLetterFilter(error="*LookupError")).replayed
        ended.acquire(timeout=60)  # nothing else prints meanwhile: `print` writes a line in two calls
        print(f"replayed: {replayed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
