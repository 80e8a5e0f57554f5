"""The purgatory: operations wait until they can be completed, or until they expire. None is completed twice.

    purgatory = Purgatory()
    purgatory.try_complete_else_watch(operation, ["orders-0", "orders-1"])
    purgatory.check_and_complete("orders-0")    # after every change of orders-0

This is Kafka's `DelayedOperation` framework over a deadline queue, on threads (`Purgatory`) and in an event loop
(`AsyncPurgatory`), with Kafka's well-known operations: `DelayedFetch`, `DelayedProduce`, `DelayedJoin`, and heartbeats
(`HeartbeatMonitor`). A completed operation leaves every list at once, so nothing is ever purged.

The deadlock rule. `check_and_complete(key)` takes the lock of each operation that waits under `key`, one after the
other. When you call it, hold no lock that a `try_complete` takes. The only exception is a lock that you gave to the
operation (`DelayedOperation(lock=...)`). `on_complete` and `on_expiration` may take any lock: they run after the
operation's lock was released, unless you hold that lock yourself.
"""

from wheel_sched.purgatory.asynchronous import AsyncPurgatory
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
    "AsyncPurgatory",
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
