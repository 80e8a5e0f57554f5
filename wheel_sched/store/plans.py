"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched.store.core.plans import *

EVER = MAX_DUE_MS
