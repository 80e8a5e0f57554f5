"""The dispatcher: a timing wheel in front of a delay store.

It reads what comes next into the wheel, sleeps until the wheel says so, claims what is due, publishes it and settles
it. A blocking read on the store's marker tells it when something earlier arrived; between sweeps an idle dispatcher
sends nothing at all. Any number of dispatchers may run over one store: claims and leases keep them apart.
"""

from wheel_sched.dispatcher.batch import Answer, Batch, Failed, Publisher
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.dispatcher import Dispatcher
from wheel_sched.dispatcher.push import PushTarget
from wheel_sched.dispatcher.statistics import DispatcherStats

__all__ = [
    "Answer",
    "Batch",
    "Dispatcher",
    "DispatcherConfig",
    "DispatcherStats",
    "Failed",
    "Publisher",
    "PushTarget",
]
