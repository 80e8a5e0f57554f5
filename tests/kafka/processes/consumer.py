"""Runs a consumer of a group in its own process, until stdin ends; see `telling` for the reports of the process.

The handler writes a line to a file when it begins and when it ends. A line has "b" (begins) or "e" (ends), number,
attempt, and nanoseconds of the machine's monotonic clock, which all processes share. The file stays when the process
dies.
"""

from __future__ import annotations

import os
import time
import zlib
from typing import Any

from telling import Telling, settings, write_facts_until_stdin_ends

from retry_topic import Consumer, ConsumerConfig, Message, connect
from retry_topic.message.headers import read


def main(given: dict[str, Any]) -> None:
    written = os.open(given["handled"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, number: int, attempt: int) -> None:
        os.write(written, f"{what} {number} {attempt} {time.monotonic_ns()}\n".encode())

    def handle(message: Message) -> None:
        number, attempt = int(message.value), read(message.headers).attempt + 1
        note("b", number, attempt)
        failed = zlib.crc32(b"%d:%d" % (number, attempt)) % 10 < 3
        note("e", number, attempt)
        if failed:
            raise ValueError("three in ten")

    broker = Telling(given["client"], **given["broker"])
    config = ConsumerConfig(**given["consumer"])
    with (
        connect(given["store"], broker=broker, namespace=given["name"], shards=given["shards"]) as connection,
        Consumer(connection, given["topic"], handle, group=given["name"], config=config),
    ):
        write_facts_until_stdin_ends(given["facts_file"], lambda: {"places": broker.places()})


if __name__ == "__main__":
    main(settings())
