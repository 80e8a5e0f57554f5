"""Lets a process report facts about itself while it runs, as JSON in a file.

Each report replaces the file. So a reader finds a whole file, also when the process is stopped or killed.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retry_topic.brokers.kafka import KafkaBroker

LOOK_S = 0.02


class Telling(KafkaBroker):
    """A broker that keeps the consumers and the log reader that it has made, to report on them."""

    def __init__(self, servers: Any, **settings: Any) -> None:
        super().__init__(servers, **settings)
        self.readers: list[Any] = []
        self.log: Any = None

    def consumer(self, *args: Any, **kwargs: Any) -> Any:
        self.readers.append(super().consumer(*args, **kwargs))
        return self.readers[-1]

    def log_reader(self, *args: Any, **kwargs: Any) -> Any:
        self.log = super().log_reader(*args, **kwargs)
        return self.log

    def places(self) -> list[list[Any]]:
        """The partitions that the consumers of this process have now: topic and number."""
        return sorted([*place] for reader in list(self.readers) for place in reader.assignments())

    def parts(self) -> dict[int, int]:
        """The retry topic partitions of this process now, and how many records of each are in its memory."""
        while True:
            try:
                return {} if self.log is None else {one.number: len(one.buffer) for one in self.log._parts.values()}
            except RuntimeError:
                continue  # the partitions changed during the iteration


def settings() -> dict[str, Any]:
    """Read the settings of this process from its first argument, and send its log to its own file."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(filename=given["log"], level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    return given


def write_facts_until_stdin_ends(file: str, facts: Callable[[], dict[str, Any]]) -> None:
    """Write the facts to `file` whenever they have changed, up to 50 times per second, until stdin ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    known, fresh = Path(file), Path(f"{file}.fresh")
    last = ""
    while True:
        text = json.dumps(facts())
        if text != last:
            fresh.write_text(text)
            fresh.replace(known)
            last = text
        if ended.wait(LOOK_S):
            return
