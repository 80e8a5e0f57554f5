"""Room: whether one more run of a job may begin, counted over all processes of a store.

A run that takes longer than a moment lies beside its job as an occurrence that names the job (`run:<job id>`), and the
job carries the ref `running` from then on. So only a claimed job with that ref is asked about, in one round trip for
all of a batch; short runs cost nothing. A job for which there is no room is handed out all the same, with a limit that
is reached whatever its executor has running: so every executor refuses it as it always does, with its event and its
log line, and what comes next is what comes after any refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from wheel_sched.store.delay_store import values_of
from wheel_sched.store.operations import Call, Find
from wheel_sched_apscheduler.occurrence import Fire
from wheel_sched_apscheduler.stores.layout import RUNNING

if TYPE_CHECKING:
    from wheel_sched.store import DelayStore

InstancesScope = Literal["store", "process"]
SCOPES: tuple[InstancesScope, ...] = ("store", "process")


class Reached(int):
    """A `max_instances` that any count has reached; it is told as what it is."""

    def __le__(self, _: object) -> bool:
        return True


def keep_to_limits(store: DelayStore, fires: Sequence[Fire]) -> None:
    """Have those refused of whose job as many run as may.

    Raises:
        StoreError: it does not answer; nothing was changed.
    """
    asked = [fire for fire in fires if RUNNING in fire.ticket.item.refs and not fire.ticket.occurrence]
    if not asked:
        return
    runs = values_of(
        store.execute(
            [Call(fire.ticket.shard, Find(f"run:{fire.job_id}", max(100, fire.job.max_instances))) for fire in asked]
        )
    )
    for fire, ids in zip(asked, runs, strict=True):
        fire.ticket.running = bool(ids)
        most = fire.job.max_instances
        if len(ids) >= most:
            route = fire.job_id if store.shards > 1 else None
            # one that is quarantined is run by nobody
            under_way = [found for found in store.get(ids, route=route) if found is not None and found.state != "held"]
            if len(under_way) >= most:
                fire.job.max_instances = Reached(most)
