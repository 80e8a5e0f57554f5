"""Announces a scheduler as a live member of its store, for `wheel-sched ps`."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from typing import Any

from apscheduler.schedulers.base import STATE_PAUSED

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import DelayStore
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import MemberAnnouncer
from wheel_sched_apscheduler.stores.connection import StoreConnection


def announcer_of(
    connection: StoreConnection, scheduler: Any, alias: str, in_flight: Sized, every_s: float
) -> MemberAnnouncer:
    """Make the announcer of a jobstore's scheduler.

    Args:
        connection: the connection of the jobstore. The announcer uses it while it is open, and never opens it.
        scheduler: the scheduler; None: nothing is announced, because nobody runs the jobs.
        alias: the alias of the jobstore.
        in_flight: the jobs that the jobstore has claimed and not settled; their number is announced.
        every_s: how often the scheduler is announced, in seconds. 0: never.
    """
    member = this_process("scheduler", alias, topics=(alias,))

    def store() -> DelayStore:
        if not connection.is_open:
            raise StoreUnavailable("the store is not open yet")
        return connection.store

    return MemberAnnouncer(
        store,
        lambda: replace(member, releases=scheduler.state != STATE_PAUSED, holds={"in_flight": len(in_flight)}),
        0 if scheduler is None else int(every_s * 1000),
    )
