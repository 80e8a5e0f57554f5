"""The delay store: a durable set of items (id, due time, body), on Redis, Valkey or in memory. Claims have leases.

`open_store` opens a store. `DelayStore` has the methods that every user needs. Each further capability is a small class
over an open store: `OrderedKeys`, `RateLimits`, `LogIntake`, `AttemptCounts`, `KnownIds`, `WriterFences`,
`ShardOwnership`, `History`, `Members`, `Documents`, `DeathGroups`, `Recurring`, `FairShares` and `ServerPush`. `rooms`
lists the folders of the core and of the capabilities.

The design is a durable form of Kafka's purgatory of delayed operations. A claim leases an item instead of popping
it, because a popped item is lost when its process dies.
"""

from wheel_sched.store.attempt_counts import ENDED, AsyncAttemptCounts, AttemptCounts, BatchCount
from wheel_sched.store.connect import open_async_store, open_store
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.counts import Counts, Window
from wheel_sched.store.core.delay_store import AsyncDelayStore, DelayStore
from wheel_sched.store.core.items import MAX_BATCH, Found, Item, Marker, Outcome, State
from wheel_sched.store.core.listing import Page
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settled, Settlement
from wheel_sched.store.core.sweep import Swept
from wheel_sched.store.death_groups import AsyncDeathGroups, CountedDeaths, DeathGroup, DeathGroups
from wheel_sched.store.documents import AsyncDocuments, DocumentPage, Documents
from wheel_sched.store.documents.operations import Document
from wheel_sched.store.fair_shares import AsyncFairShares, FairSettings, FairShares, fair_ref
from wheel_sched.store.history import AsyncHistory, History
from wheel_sched.store.known_ids import AsyncKnownIds, KnownIds
from wheel_sched.store.log_intake import AsyncLogIntake, LogIntake, Position
from wheel_sched.store.members import AsyncMembers, LiveMember, Member, Members
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.push import AsyncServerPush, Pushed, Refused, ServerPush
from wheel_sched.store.push.push_form import PushForm, decode_push, encode_push
from wheel_sched.store.rate_limits import RateLimits
from wheel_sched.store.recurring import AsyncRecurring, Recur, Recurring
from wheel_sched.store.shard_ownership import AsyncShardOwnership, ShardOwnership
from wheel_sched.store.writer_fence import AsyncWriterFences, Fence, WriterFences

__all__ = [
    "ENDED",
    "MAX_BATCH",
    "AsyncAttemptCounts",
    "AsyncDeathGroups",
    "AsyncDelayStore",
    "AsyncDocuments",
    "AsyncFairShares",
    "AsyncHistory",
    "AsyncKnownIds",
    "AsyncLogIntake",
    "AsyncMembers",
    "AsyncRecurring",
    "AsyncServerPush",
    "AsyncShardOwnership",
    "AsyncWriterFences",
    "AttemptCounts",
    "BatchCount",
    "Claim",
    "Claimed",
    "CountedDeaths",
    "Counts",
    "Dead",
    "DeathGroup",
    "DeathGroups",
    "DelayStore",
    "Document",
    "DocumentPage",
    "Documents",
    "Done",
    "FairSettings",
    "FairShares",
    "Fence",
    "Found",
    "Held",
    "History",
    "Item",
    "KnownIds",
    "LiveMember",
    "LogIntake",
    "Marker",
    "Member",
    "Members",
    "Next",
    "OrderedKeys",
    "Outcome",
    "Page",
    "Position",
    "PushForm",
    "Pushed",
    "RateLimits",
    "Recur",
    "Recurring",
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
    "fair_ref",
    "open_async_store",
    "open_store",
]
