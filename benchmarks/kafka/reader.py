"""A reader of committed records that measures when they arrive.

The reader runs in a process of its own, so it shares no lock with the measured process.
"""

from __future__ import annotations

import gc
import time
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.outside import Outside

PATIENCE_S = 180.0


class Reader:
    """Reads a topic from its start, and notes when each record arrives.

    Args:
        servers: addresses of the cluster.
        topic: the name of the topic.
        partitions: the number of its partitions.
    """

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.came: list[tuple[bytes, int]] = []
        self._outside = Outside(_read, servers, topic, partitions)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.stop()

    def wait(self, count: int) -> None:
        """Wait for `count` records. Then `came` has the value of each record, and when it arrived (epoch ms).

        Raises:
            TimeoutError: fewer records arrived within `PATIENCE_S` seconds.
        """
        self.came = self._outside.ask(count)
        if len(self.came) < count:
            raise TimeoutError(f"{len(self.came)} of {count} messages came within {PATIENCE_S:g} s")


def _read(pipe: Connection, servers: str, topic: str, partitions: int) -> None:
    """Read the topic in a separate process.

    The parent process sends a number. This process sends all records back when that many have arrived, and after
    `PATIENCE_S` seconds in any case.
    """
    client: Any = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    came: list[tuple[bytes, int]] = []

    def take(wait_s: float) -> None:
        first = client.poll(wait_s)
        now_ms = time.time_ns() // 1_000_000
        for record in () if first is None else (first, *client.consume(2_000, 0)):
            if record.error() is None:
                came.append((record.value(), now_ms))

    take(1.0)  # records before the first question count too
    gc.disable()  # a collection takes 30 ms, which would count as lateness; this code makes no reference cycles
    pipe.send("ready")
    wanted, until_s = 0, 0.0
    while True:
        if pipe.poll():
            asked = pipe.recv()
            if asked == "stop":
                break
            wanted, until_s = asked, time.monotonic() + PATIENCE_S
        take(0.1)
        if wanted and (len(came) >= wanted or time.monotonic() > until_s):
            pipe.send(came)
            wanted = 0
    client.close()
