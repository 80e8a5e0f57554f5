"""A consumer that posts each message of a Kafka topic to an HTTP endpoint, which sometimes fails.

python examples/kafka_webhooks.py localhost:9092 http://127.0.0.1:8080/ webhooks

After status 429, 5xx or a refused connection the message comes back, but not earlier than a Retry-After header says.
After any other 4xx the message becomes a dead letter at once.
"""

# ruff: noqa: S310 - the address is the caller's

from __future__ import annotations

import sys
import threading
import urllib.error
import urllib.request

from retry_topic import Consumer, DeadLetter, Message, Retry, RetryService, connect, load_policies
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import read

POLICIES = load_policies("""
[default]
max_attempts = 5
delay = { kind = "exponential", base = "100ms", factor = 2, jitter = "none" }
""")

ended = threading.Semaphore(0)


def say(line: str) -> None:
    """Print a whole line, also while other handlers print: `print` writes the text and the line end in two calls."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def post(address: str, message: Message) -> Retry | DeadLetter | None:
    """Post one message. The returned verdict says what happens to the message."""
    attempt = read(message.headers).attempt + 1
    try:
        with urllib.request.urlopen(urllib.request.Request(address, message.value), timeout=5) as reply:
            say(f"{message.value.decode()}: {reply.status} at attempt {attempt}")
    except urllib.error.HTTPError as error:
        if error.code == 429:
            return Retry(after=float(error.headers.get("Retry-After", "1")), reason="the endpoint is busy")
        if error.code < 500:
            say(f"{message.value.decode()}: dead, {error.code}")
            ended.release()
            return DeadLetter(f"the endpoint refuses it: {error.code}")
        raise
    ended.release()
    return None


def main(servers: str, address: str, topic: str, count: int) -> None:
    with (
        connect("embedded:.wheel-sched", broker=KafkaBroker(servers)) as connection,
        RetryService(connection, "webhooks", POLICIES),
        Consumer(connection, topic, lambda message: post(address, message), group="webhooks"),
    ):
        for _ in range(count):
            ended.acquire()


if __name__ == "__main__":
    main(*sys.argv[1:4], count=int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize)
