"""An `async def` handler: many messages wait for the network at the same time, and failed ones come back.

python examples/asyncio_handler.py
"""

# ruff: noqa: T201 - an example shows what it does

from __future__ import annotations

import asyncio
import sys
import time

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.message.headers import read
from retry_topic.policy import Fixed

COUNT = 100
done: set[bytes] = set()


async def call_the_api(message: Message) -> None:
    """The handler. Every third message times out at its first attempt. The handler does not catch the error."""
    await asyncio.sleep(0.05)  # the network
    if int(message.value) % 3 == 0 and read(message.headers).attempt == 0:
        raise TimeoutError("no answer")
    done.add(message.value)


def main(url: str = "memory:") -> None:
    started = time.monotonic()
    with (
        connect(url) as connection,
        Consumer(connection, "calls", call_the_api, group="caller", config=ConsumerConfig(concurrency=50)) as consumer,
        RetryService(connection, "caller", RetryPolicy(delay=Fixed(base_ms=100), max_attempts=3)),
    ):
        for n in range(COUNT):
            connection.publish("calls", str(n).encode())
        while len(done) < COUNT and time.monotonic() < started + 60:
            time.sleep(0.01)  # handlers run on another event loop
    print(f"{len(done)} calls answered, {consumer.stats.retried} of them at the second attempt")
    print(f"one after the other it would have taken {COUNT * 0.05:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
