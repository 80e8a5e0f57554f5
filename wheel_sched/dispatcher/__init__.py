"""The dispatcher: a timing wheel in front of a delay store.

It reads what comes next into the wheel, sleeps until the wheel says so, claims what is due, has it published and
settles it. A blocking read on the store's marker reports that something earlier arrived; between sweeps an idle
dispatcher sends nothing at all. Any number of dispatchers may run over one store: claims and leases keep them apart.

    dispatcher    the owner thread: its loop, its calls to the store, and what it does with each reply
    claim_source  from which shards it may claim, how long a claim is its own, how a claim ends
    publisher     the contract of publishers: batches, answers, declared traits
    due_shards    what is known of each shard, and which are to be looked at now
    alarms        the timing wheel, on the store's time
    in_flight     batches that wait for their answers, and a drain that waits for them
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
