"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.rate_limits.face import *
from wheel_sched.store.rate_limits.face import RateLimits

FlowControl = RateLimits
