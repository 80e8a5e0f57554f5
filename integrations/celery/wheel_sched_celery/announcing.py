"""`AnnounceStep`: the worker's bootstep that announces the worker in the delay store, for `wheel-sched ps`.

Threads: the worker's main thread calls `start` and `stop`; one thread announces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery import bootsteps
from celery.worker import state as worker_state

from wheel_sched.store import Member
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import MemberAnnouncer
from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.wheel import wheel_with_store


class AnnounceStep(bootsteps.StartStopStep):
    """Announces a worker while it runs. It starts after the processes of the pool and of embedded beat are forked."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, w: Any, **kwargs: Any) -> None:
        self._announcer: MemberAnnouncer | None = None
        super().__init__(w, **kwargs)

    def include_if(self, w: Any) -> bool:
        wheel = wheel_with_store(w.app)
        return wheel is not None and wheel.settings.announce > 0

    def create(self, w: Any) -> AnnounceStep:
        preload(w.app.wheel)
        return self

    def start(self, w: Any) -> None:
        if self._announcer is not None:
            return
        wheel = w.app.wheel
        member = this_process("celery-worker", w.hostname, releases=wheel.settings.dispatch)
        self._announcer = MemberAnnouncer(lambda: wheel.store, lambda: _present(member, w), wheel.settings.announce)
        self._announcer.start()

    def stop(self, w: Any) -> None:
        announcer, self._announcer = self._announcer, None
        if announcer is not None:
            announcer.stop()

    terminate = stop


def _present(member: Member, w: Any) -> Member:
    """The member with the worker's present queues and counts of tasks.

    `active` tasks run, `reserved` tasks were fetched from the broker, and `in_flight` tasks are being sent by the
    worker's dispatcher.
    """
    holds = {"active": len(worker_state.active_requests), "reserved": len(worker_state.reserved_requests)}
    embedded, lateness = getattr(w, "wheel_dispatcher", None), ()
    if embedded is not None and embedded.dispatcher is not None:
        holds["in_flight"] = embedded.dispatcher.stats.in_flight
        lateness = tuple(embedded.dispatcher.stats.lateness_counts)
    return replace(member, topics=_queues(w.app), holds=holds, lateness=lateness)


def _queues(app: Any) -> tuple[str, ...]:
    queues: Mapping[str, Any] = app.amqp.queues.consume_from
    return tuple(sorted(queues))
