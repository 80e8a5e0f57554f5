"""A dispatcher in a process of its own, which prints one JSON object at its end.

`python -m benchmarks.growth.dispatching rest URL` lets it sleep. `drain URL` prints "ready" and lets it publish until
its input ends.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.messages import NullPublisher
from benchmarks.resident import resident_bytes
from benchmarks.server import NAMESPACE
from wheel_sched.dispatcher import Batch, Dispatcher
from wheel_sched.store import open_store

_REST_S = 0.5  # within this time the dispatcher reads the next due times and sleeps


class CountingPublisher(NullPublisher):
    """Counts what it publishes, and notes the time and the processor time of the process at each batch."""

    def __init__(self) -> None:
        self.published = 0
        self.last_s = 0.0
        self.processor_s = 0.0
        self._began_s = 0.0

    def publish(self, batch: Batch) -> None:
        super().publish(batch)
        self._began_s = self._began_s or time.process_time()
        self.published += len(batch.items)
        self.last_s, self.processor_s = time.time(), time.process_time() - self._began_s


def rest(url: str) -> dict[str, Any]:
    """Let a dispatcher sleep until its next message is due. Returns the resident memory of this process, in bytes."""
    with open_store(url, namespace=NAMESPACE) as store, Dispatcher(store, NullPublisher()):
        time.sleep(_REST_S)
        return {"resident": resident_bytes()}


def drain(url: str) -> dict[str, Any]:
    """Publish due messages until the input ends.

    Returns how many messages were published, the time of the last batch, and the processor time.
    """
    publisher = CountingPublisher()
    with open_store(url, namespace=NAMESPACE) as store, Dispatcher(store, publisher):
        print("ready", flush=True)
        sys.stdin.read()
    return {name: getattr(publisher, name) for name in ("published", "last_s", "processor_s")}


if __name__ == "__main__":
    print(json.dumps({"rest": rest, "drain": drain}[sys.argv[1]](*sys.argv[2:])))
