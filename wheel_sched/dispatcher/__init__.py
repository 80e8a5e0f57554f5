"""The dispatcher: a timing wheel in front of a delay store.

The dispatcher reads the next due times into the wheel, sleeps until the next one, claims due items, gives them to the
publisher and settles them. When an item is stored that is due earlier than all others, the store writes a marker (a
stream entry), and the dispatcher's blocking read receives it. Apart from this read, an idle dispatcher sends only a
sweep every 60 s to each shard with waiting items. Any number of dispatchers may run over one store, because a claimed
item belongs to one dispatcher until its lease ends.

    dispatcher    the owner thread, with workers and listeners around it
    owner_loop    what the owner does in each step; it runs without a thread, for example in a simulator
    in_flight     batches from their claim to their settling; turns a publisher's answers into settlements
    due_shards    the state of each shard: unread, due, to be swept, or asleep until its alarm
    claim_source  from which shards the dispatcher may claim, how long it owns a claim, how a claim ends
    publisher     the contract of publishers: batches, answers, declared traits
    store_calls   calls without a reply yet, and an estimate of the store's clock
    workers       threads that publish, and the watchdog over all threads
    listener      a thread that waits for the store's markers
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
