"""The delay store: a durable set of (id, due, body), claimed under leases, on Redis, Valkey or in memory.

`open_store` opens a store. `DelayStore` has the methods that every user needs. Each further capability is a small class
over an open store: `OrderedKeys`, `RateLimits`, `LogIntake`, `AttemptCounts`, `KnownIds`, `WriterFences`,
`ShardOwnership`, `History` and `ServerPush`. `rooms` lists the folders of this package, one for the core and one for
each capability.

Source of the design: a durable form of Kafka's purgatory of delayed operations. It has leases instead of pops, because
a popped message is lost when its process dies.
"""

from wheel_sched.store.attempt_counts.face import AsyncAttemptCounts, AttemptCounts
from wheel_sched.store.attempt_counts.operations import ENDED, BatchCount
from wheel_sched.store.connect import open_async_store, open_store
from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, Found, Item, Marker, Outcome, State
from wheel_sched.store.core.listing import Page
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settled, Settlement
from wheel_sched.store.core.sweep import Swept
from wheel_sched.store.core.window import Window
from wheel_sched.store.history.face import AsyncHistory, History
from wheel_sched.store.known_ids.face import AsyncKnownIds, KnownIds
from wheel_sched.store.log_intake.face import AsyncLogIntake, LogIntake
from wheel_sched.store.log_intake.operations import Position
from wheel_sched.store.ordering.face import OrderedKeys
from wheel_sched.store.push.face import AsyncServerPush, ServerPush
from wheel_sched.store.push.operations import Pushed, Refused
from wheel_sched.store.push.push_form import PushForm, decode_push, encode_push
from wheel_sched.store.rate_limits.face import RateLimits
from wheel_sched.store.shard_ownership.face import AsyncShardOwnership, ShardOwnership
from wheel_sched.store.writer_fence.face import AsyncWriterFences, WriterFences
from wheel_sched.store.writer_fence.operations import Fence

__all__ = [
    "ENDED",
    "MAX_BATCH",
    "AsyncAttemptCounts",
    "AsyncDelayStore",
    "AsyncHistory",
    "AsyncKnownIds",
    "AsyncLogIntake",
    "AsyncServerPush",
    "AsyncShardOwnership",
    "AsyncWriterFences",
    "AttemptCounts",
    "BatchCount",
    "Claim",
    "Claimed",
    "Counts",
    "Dead",
    "DelayStore",
    "Done",
    "Fence",
    "Found",
    "Held",
    "History",
    "Item",
    "KnownIds",
    "LogIntake",
    "Marker",
    "Next",
    "OrderedKeys",
    "Outcome",
    "Page",
    "Position",
    "PushForm",
    "Pushed",
    "RateLimits",
    "Refused",
    "ServerPush",
    "Settled",
    "Settlement",
    "ShardOwnership",
    "State",
    "Stored",
    "Swept",
    "Window",
    "WriterFences",
    "decode_push",
    "encode_push",
    "open_async_store",
    "open_store",
]
