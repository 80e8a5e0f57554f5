"""Names of other modules of the store, for callers that import them from here."""

# ruff: noqa: F403

from wheel_sched.store.redis.round_trips import *
