"""The consumer of the compose file: it publishes a message each second, and fails at a third of them.

Its store comes from WHEEL_SCHED_STORE and WHEEL_SCHED_DURABILITY, as that of the other programs.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading

from retry_topic import Consumer, Message, connect
from wheel_sched.observability import JsonLines

asked = threading.Event()


def deliver(message: Message) -> None:
    """A webhook that is down at times, and now and then gets a message that it can never read."""
    chance = random.random()
    if chance < 0.02:
        raise ValueError("the payload is no JSON")
    if chance < 0.35:
        raise ConnectionError("the webhook does not answer")


def main() -> None:
    """Publish and consume until a signal."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level="INFO", handlers=[handler])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    store, durability = os.environ["WHEEL_SCHED_STORE"], os.environ.get("WHEEL_SCHED_DURABILITY", "everysec")
    with (
        connect(store, durability=durability, create_topics=True) as connection,
        Consumer(connection, "webhooks", deliver, group="webhooks"),
    ):
        sent = 0
        while not asked.wait(1.0):
            connection.publish("webhooks", b'{"order": %d}' % sent, key=b"customer-%d" % (sent % 20))
            sent += 1


if __name__ == "__main__":
    main()
