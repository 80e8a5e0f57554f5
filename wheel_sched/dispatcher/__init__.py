"""The dispatcher: a timing wheel in front of a delay store.

It reads the next due times into the wheel, sleeps until the next one, claims due items, gives them to the publisher and
settles them. A blocking read on the store's marker reports an item that is due earlier than all others. Between sweeps
an idle dispatcher sends nothing. Any number of dispatchers may run over one store: claims and leases keep them apart.

    dispatcher    the owner thread: its loop, its calls to the store, and the handling of each reply
    claim_source  from which shards the dispatcher may claim, how long it owns a claim, how a claim ends
    publisher     the contract of publishers: batches, answers, declared traits
    due_shards    the state of each shard: unread, due, or to be swept
    alarms        the timing wheel, on the store's time
    in_flight     batches that wait for their answers, and a drain that waits for these batches
    workers       threads that publish, and the watchdog over all threads
    backoff       from answers to settlements
"""

from wheel_sched.dispatcher.claim_source import ClaimSource, PushTarget, SharedLeases
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.dispatcher import Dispatcher
from wheel_sched.dispatcher.publisher import Answer, Batch, Failed, Publisher, PublisherTraits
from wheel_sched.dispatcher.statistics import DispatcherStats

__all__ = [
    "Answer",
    "Batch",
    "ClaimSource",
    "Dispatcher",
    "DispatcherConfig",
    "DispatcherStats",
    "Failed",
    "Publisher",
    "PublisherTraits",
    "PushTarget",
    "SharedLeases",
]
