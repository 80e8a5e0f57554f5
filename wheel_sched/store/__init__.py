"""The delay store: a durable set of (id, due, body), claimed under leases, on Redis, Valkey or in memory.

`open_store` gives one; `DelayStore` says what it can do; `items` what goes in and comes out. Source of the design:
Kafka's purgatory of delayed operations made durable, with leases instead of pops, because a popped message dies with
whoever popped it.
"""

from wheel_sched.store.attempt_counts.operations import ENDED, Tries
from wheel_sched.store.connect import open_async_store, open_store
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import MAX_BATCH, Found, Item, Mark, Outcome, State
from wheel_sched.store.core.listing import Page
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settled, Settlement
from wheel_sched.store.core.sweep import Swept
from wheel_sched.store.core.window import Window
from wheel_sched.store.delay_store import AsyncDelayStore, DelayStore
from wheel_sched.store.log_intake.operations import Position
from wheel_sched.store.push.operations import Pushed, Refused
from wheel_sched.store.push.push_form import PushForm, decode_push, encode_push
from wheel_sched.store.writer_fence.operations import Fence

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
