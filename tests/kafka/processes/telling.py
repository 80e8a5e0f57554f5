"""The reports of a process about itself while it runs: JSON facts in a file.

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
    """A broker that knows the readers it has made."""

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
        """The partitions that a consumer of this process has now: topic and number."""
        return sorted([*place] for reader in list(self.readers) for place in reader.assignments())

    def parts(self) -> dict[int, int]:
        """The retry topic partitions of this process now, and how many records of each are in its memory."""
        while True:
            try:
                return {} if self.log is None else {one.number: len(one.buffer) for one in self.log._parts.values()}
            except RuntimeError:
                continue  # the partitions changed during the iteration


def settings() -> dict[str, Any]:
    """The settings of this process. Its log goes to its own file."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(filename=given["log"], level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    return given


def write_facts_until_stdin_ends(file: str, facts: Callable[[], dict[str, Any]]) -> None:
    """Write `facts` to `file` 50 times a second, until stdin ends."""
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
