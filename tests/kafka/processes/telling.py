"""What a process of a group tells of itself while it runs: lines of JSON facts in a file, the last of them whole.

The file is replaced, never written to, so whoever reads it while this process is stopped or killed finds a whole one.
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
        """The partitions of the retry topic that this process has now, and how much of each lies in its memory."""
        while True:
            try:
                return {} if self.log is None else {one.number: len(one.buffer) for one in self.log._parts.values()}
            except RuntimeError:
                continue  # they came or went meanwhile


def settings() -> dict[str, Any]:
    """What this process was started with; its log goes to a file of its own."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(filename=given["log"], level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    return given


def tell_until_stdin_ends(file: str, facts: Callable[[], dict[str, Any]]) -> None:
    """Keep `file` at what `facts` answers, 50 times a second, until whoever started us lets go."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    known, fresh = Path(file), Path(f"{file}.fresh")
    last = ""
    while True:
        said = json.dumps(facts())
        if said != last:
            fresh.write_text(said)
            fresh.replace(known)
            last = said
        if ended.wait(LOOK_S):
            return
