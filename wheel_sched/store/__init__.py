"""The delay store: a durable set of (id, due, body), claimed under leases, on Redis, Valkey or in memory.

`open_store` gives one; `DelayStore` says what it can do; `items` what goes in and comes out. Source of the design:
Kafka's purgatory of delayed operations made durable, with leases instead of pops, because a popped message dies with
whoever popped it.
"""

from wheel_sched.store.connect import open_async_store, open_store
from wheel_sched.store.core.items import (
    ENDED,
    MAX_BATCH,
    Claim,
    Claimed,
    Counts,
    Dead,
    Done,
    Fence,
    Found,
    Held,
    Item,
    Mark,
    Next,
    Outcome,
    Page,
    Position,
    Pushed,
    Refused,
    Settled,
    Settlement,
    State,
    Stored,
    Swept,
    Tries,
    Window,
)
from wheel_sched.store.delay_store import AsyncDelayStore, DelayStore
from wheel_sched.store.push.push_form import PushForm, decode_push, encode_push

__all__ = [
    "ENDED",
    "MAX_BATCH",
    "AsyncDelayStore",
    "Claim",
    "Claimed",
    "Counts",
    "Dead",
    "DelayStore",
    "Done",
    "Fence",
    "Found",
    "Held",
    "Item",
    "Mark",
    "Next",
    "Outcome",
    "Page",
    "Position",
    "PushForm",
    "Pushed",
    "Refused",
    "Settled",
    "Settlement",
    "State",
    "Stored",
    "Swept",
    "Tries",
    "Window",
    "decode_push",
    "encode_push",
    "open_async_store",
    "open_store",
]
