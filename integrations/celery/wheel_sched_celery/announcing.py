"""Announces workers and beat processes in the delay store, for `wheel-sched ps`.

A worker runs the bootstep `AnnounceStep`. A process of `celery beat -S wheel` starts a `beat_announcer`.

Threads: the main thread of a worker or beat process starts and stops the announcer; one thread announces.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state as worker_state

from wheel_sched.store import Member
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import MemberAnnouncer
from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.settings import BEAT, WORKER
from wheel_sched_celery.wheel import Wheel, wheel_with_store

if TYPE_CHECKING:
    from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher


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
        member = this_process(WORKER, w.hostname, releases=wheel.settings.dispatch)
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
    member = _with_dispatcher(member, getattr(w, "wheel_dispatcher", None))
    return replace(member, topics=_queues(w.app), holds={**holds, **member.holds})


def beat_announcer(wheel: Wheel, embedded: EmbeddedDispatcher) -> MemberAnnouncer:
    """The announcer of a beat process, not started. With `announce=0` it never announces.

    Args:
        wheel: the integration of the app.
        embedded: the dispatcher of the process.
    """
    member = this_process(BEAT, f"beat@{socket.gethostname()}", releases=True)
    return MemberAnnouncer(lambda: wheel.store, lambda: _with_dispatcher(member, embedded), wheel.settings.announce)


def _with_dispatcher(member: Member, embedded: EmbeddedDispatcher | None) -> Member:
    """The member with the number of tasks in flight and the lateness, as its dispatcher counts them.

    Without a dispatcher: the same member.
    """
    dispatcher = None if embedded is None else embedded.dispatcher
    if dispatcher is None:
        return member
    stats = dispatcher.stats
    return replace(member, holds={"in_flight": stats.in_flight}, lateness=tuple(stats.lateness_counts))


def _queues(app: Any) -> tuple[str, ...]:
    queues: Mapping[str, Any] = app.amqp.queues.consume_from
    return tuple(sorted(queues))
