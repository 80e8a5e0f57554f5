"""The purgatory: operations that wait until they can be completed, or until their time is up. Exactly once.

    purgatory = Purgatory()
    purgatory.try_complete_else_watch(operation, ["orders-0", "orders-1"])
    purgatory.check_and_complete("orders-0")    # whoever changed something about orders-0 says so

Kafka's `DelayedOperation` framework on the timing wheel: on threads (`Purgatory`) and in an event loop
(`wheel_sched.purgatory.aio.AsyncPurgatory`), with the operations it is known for: `DelayedFetch`, `DelayedProduce`,
`DelayedJoin`, and a `HeartbeatMonitor`. Nothing is purged: a completed operation leaves every list.

The deadlock rule. `check_and_complete(key)` takes, one after the other, the locks of the operations watched under
`key` that are not completed. So call it while you hold no lock that a `try_complete` takes; or give the operation that
very lock as its own (`DelayedOperation(lock=...)`) and hold no other. `on_complete` and `on_expiration` may take any
lock: they run after the operation's own has been released.
"""

from wheel_sched.purgatory.fetch import Available, DelayedFetch
from wheel_sched.purgatory.heartbeat import HeartbeatMonitor
from wheel_sched.purgatory.join import DelayedJoin, Joined
from wheel_sched.purgatory.operation import Completion, DelayedOperation
from wheel_sched.purgatory.produce import DelayedProduce
from wheel_sched.purgatory.purgatory import Purgatory
from wheel_sched.purgatory.reaper import Handle, Reaper, Timer
from wheel_sched.purgatory.statistics import LATENESS_BUCKETS_MS, PurgatoryStats

__all__ = [
    "LATENESS_BUCKETS_MS",
    "Available",
    "Completion",
    "DelayedFetch",
    "DelayedJoin",
    "DelayedOperation",
    "DelayedProduce",
    "Handle",
    "HeartbeatMonitor",
    "Joined",
    "Purgatory",
    "PurgatoryStats",
    "Reaper",
    "Timer",
]
