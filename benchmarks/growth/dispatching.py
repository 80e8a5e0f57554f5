"""A dispatcher in a process of its own. `python -m benchmarks.growth.dispatching rest URL` prints one JSON object."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.messages import NullPublisher
from benchmarks.resident import resident_bytes
from benchmarks.server import NAMESPACE
from wheel_sched.dispatcher import Dispatcher
from wheel_sched.store import open_store

_REST_S = 0.5  # the dispatcher reads the next due times and sleeps


def rest(url: str) -> dict[str, float]:
    """Let a dispatcher sleep until its next message is due. Returns the resident memory of this process, in bytes."""
    with open_store(url, namespace=NAMESPACE) as store, Dispatcher(store, NullPublisher()):
        time.sleep(_REST_S)
        return {"resident": resident_bytes()}


if __name__ == "__main__":
    print(json.dumps({"rest": rest}[sys.argv[1]](*sys.argv[2:])))
