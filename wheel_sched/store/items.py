"""The names of other modules of the store, under the name that callers still import."""

# ruff: noqa: F403

from wheel_sched.store.attempt_counts.operations import *
from wheel_sched.store.attempt_counts.operations import BatchCount
from wheel_sched.store.core.claim import *
from wheel_sched.store.core.counts import *
from wheel_sched.store.core.items import *
from wheel_sched.store.core.items import Marker
from wheel_sched.store.core.listing import *
from wheel_sched.store.core.schedule import *
from wheel_sched.store.core.settle import *
from wheel_sched.store.core.sweep import *
from wheel_sched.store.core.window import *
from wheel_sched.store.log_intake.operations import *
from wheel_sched.store.push.operations import *
from wheel_sched.store.shard_ownership.operations import *
from wheel_sched.store.writer_fence.operations import *

Mark = Marker
Tries = BatchCount
