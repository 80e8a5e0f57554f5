"""The names of other modules of the store, under the name that callers still import."""

from wheel_sched.store.core.pending import CompletedCalls, PendingCalls

Begun = PendingCalls
Performed = CompletedCalls
