"""Producer and consumer in two processes over one folder: the consumer is killed, and no message is lost.

    python examples/two_processes.py

The parent opens the folder, so it owns the server of the folder. It runs the retry service and publishes. The child
consumes, and is killed with SIGKILL half-way. A second child gets the messages that the first one had not settled.
"""

# ruff: noqa: T201 - an example shows what it does

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.message.headers import read
from retry_topic.policy import Fixed

COUNT = 60


def consume(url: str) -> None:
    """The child process consumes messages; every fourth message fails once. It ends when its stdin is closed."""

    def handle(message: Message) -> None:
        if int(message.value) % 4 == 0 and read(message.headers).attempt == 0:
            raise ConnectionError("try again")
        time.sleep(0.01)  # some work
        os.write(1, b"%s\n" % message.value)

    config = ConsumerConfig(concurrency=4, idle_ms=500)  # half a second after a consumer dies, others take its messages
    with connect(url) as connection, Consumer(connection, "orders", handle, group="billing", config=config):
        sys.stdin.read()


def start_child(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "consume", url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main(folder: str) -> None:
    url = f"embedded:{folder}"
    policy = RetryPolicy(delay=Fixed(base_ms=100), max_attempts=5)
    with connect(url) as connection, RetryService(connection, "billing", policy):
        connection.broker.create_topic("orders")
        for n in range(COUNT):
            connection.publish("orders", str(n).encode())
        first = start_child(url)
        handled = [number_of(first) for _ in range(COUNT // 3)]
        os.kill(first.pid, signal.SIGKILL)
        handled += rest_of(first)
        print(f"killed the first consumer after {len(handled)} messages")
        second = start_child(url)
        while len(set(handled)) < COUNT:
            handled.append(number_of(second))
        handled += rest_of(second)
        print(f"{len(set(handled))} of {COUNT} messages handled, {len(handled) - len(set(handled))} of them twice")


def number_of(child: subprocess.Popen[bytes]) -> int:
    """Read the next number that a child prints."""
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    return int(child.stdout.readline())


def rest_of(child: subprocess.Popen[bytes]) -> list[int]:
    """End a child, and return the numbers that it printed and this process has not read yet.

    `communicate` would miss the numbers that are already in the buffer of `child.stdout`.
    """
    assert child.stdin is not None  # noqa: S101 - a pipe was asked for
    assert child.stdout is not None  # noqa: S101 - as above
    with child:  # waits for its end
        child.stdin.close()
        return [int(line) for line in child.stdout]


if __name__ == "__main__":
    if sys.argv[1:2] == ["consume"]:
        consume(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as own_folder:
            main(*(sys.argv[1:] or [own_folder]))
