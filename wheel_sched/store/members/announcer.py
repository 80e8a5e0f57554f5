"""`MemberAnnouncer`: announces a member of a namespace again and again, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from wheel_sched.errors import ConfigError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.members import MAX_LEASE_MS, Member, Members

logger = logger_of("wheel_sched.members")

CONSUMER_EVERY_MS = 5_000
"""How often (ms) a member announces itself if it calls a server every few seconds anyway."""
DISPATCHER_EVERY_MS = 60_000
"""How often (ms) a member with a dispatcher announces itself: as often as an idle dispatcher sweeps."""

_AGAIN_S = 5.0  # after a failure; sooner if the member announces itself more often
_SLACK_MS = 5_000  # a late announcement does not end the lease
_LEAVE_S = 2.0  # how long `stop` waits


def lease_for(every_ms: int) -> int:
    """The lease (ms) of a member that announces itself every `every_ms`. One failed announcement does not end it."""
    return min(2 * every_ms + _SLACK_MS, MAX_LEASE_MS)


class MemberAnnouncer:
    """Announces a member until `stop`. The member leaves the list when the announcer stops, or when its lease ends.

    Announcing raises no error in the caller: the first of several errors in a row is logged, and the announcer tries
    again. Call `start` and `stop` from any thread, once each.

    Args:
        store: returns the open delay store. It may raise while the store is away.
        member: returns what the member says now: always with the same id, or always without one. In the second case
            the announcer gives it a random id.
        every_ms: how often, in ms, up to half a day. 0: never; then no thread is started.
        name: the name of the thread. Defaults to "wheel-sched-announce".

    The announcer calls `store` and `member` in its thread.

    Raises:
        ConfigError: `every_ms` is out of bounds.
    """

    def __init__(
        self,
        store: Callable[[], DelayStore],
        member: Callable[[], Member],
        every_ms: int,
        name: str = "wheel-sched-announce",
    ) -> None:
        if problem := every_problem("every_ms", every_ms):
            raise ConfigError(problem)
        self._store = store
        self._member = member
        self._every_ms = every_ms
        self._name = name
        self._began_s = time.monotonic()
        self._failures = 0  # in a row
        self._announced: str | None = None  # the id
        self._stopping = threading.Event()
        self._thread: RevivedThread | None = None

    def start(self) -> None:
        """Start the thread, which announces the member at once."""
        if self._every_ms:
            self._thread = RevivedThread(self._run, self._name, self._stopping)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the member from the list. Waits up to two seconds for the store."""
        self._stopping.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        id_if_none = uuid4().hex
        while not self._stopping.is_set():
            self._announce(id_if_none)
            every_s = self._every_ms / 1000
            self._stopping.wait(min(every_s, _AGAIN_S) if self._failures else every_s)
        if self._announced is not None:
            self._leave(self._announced)

    def _announce(self, id_if_none: str) -> None:
        try:
            member, age_ms = self._member(), int((time.monotonic() - self._began_s) * 1000)
            member = member if member.id else replace(member, id=id_if_none)
            Members(self._store()).announce(member, lease_for(self._every_ms), age_ms=age_ms)
        except Exception as error:  # any error: the member works without being listed
            self._failures += 1
            if self._failures == 1:
                expected = isinstance(error, WheelSchedError)
                logger.warning(
                    "members.not_announced: %s; `wheel-sched ps` may not list this process, its work goes on",
                    error,
                    exc_info=None if expected else error,
                )
        else:
            self._failures = 0
            self._announced = member.id

    def _leave(self, member_id: str) -> None:
        try:
            Members(self._store()).leave(member_id)
        except Exception as error:  # the lease ends in any case
            logger.debug("members.not_left: %s; the member is listed until its lease ends", error)


def every_problem(name: str, value: object) -> str | None:
    """The error text if `value` is no valid period (ms) between announcements; None if it is valid.

    `name` is the name of the setting in the error text.
    """
    if type(value) is int and 0 <= value <= MAX_LEASE_MS // 2:
        return None
    return f"expected {name} to be 0 (never) or a whole number up to {MAX_LEASE_MS // 2}, got: {value!r}"
