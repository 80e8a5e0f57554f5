"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.redis.round_trips import *
