"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.core.async_delay_store import *
from wheel_sched.store.delay_store import AsyncDelayStore as AsyncDelayStore
