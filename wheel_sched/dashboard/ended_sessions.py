"""The sessions whose users have signed out. A copy of the cookie of such a session is refused.

The store keeps the id of an ended session for as long as its cookie would have been valid. The process that ended the
session knows this at once. The other processes that serve the dashboard read it within two seconds. While the store
does not answer, a process knows only the sessions that it ended itself. During that time the pages show nothing from
the store, and no change is possible.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from wheel_sched.dashboard.recent import Recent
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore, Documents

logger = logger_of(__name__)

_COLLECTION = "ended-sessions"
_KEPT = 10_000
_FRESH_S = 2.0


class EndedSessions:
    """The ended sessions of a dashboard. Thread-safe. The 10,000 that ended last are kept.

    Args:
        store: returns the open store, or raises a `StoreError`.
        kept_s: how many seconds an ended session is remembered; at least as long as a cookie is valid.
    """

    def __init__(self, store: Callable[[], DelayStore], kept_s: int) -> None:
        self._store = store
        self._kept_ms = kept_s * 1000
        self._here: OrderedDict[str, None] = OrderedDict()
        self._recent = Recent()
        self._lock = threading.Lock()

    def end(self, session_id: str) -> None:
        """End a session. If the store cannot keep this, the log says so, and only this process refuses the session."""
        with self._lock:
            self._here[session_id] = None
            if len(self._here) > _KEPT:
                self._here.popitem(last=False)
        try:
            Documents(self._store()).put(_COLLECTION, session_id, b"", ttl_ms=self._kept_ms, keep=_KEPT)
        except StoreError as error:
            logger.warning("dashboard.session_not_ended: %s: %s", type(error).__name__, error)

    def has(self, session_id: str) -> bool:
        """Whether this session was ended."""
        with self._lock:
            if session_id in self._here:
                return True
        try:
            return self._recent.get(session_id, _FRESH_S, lambda: self._is_stored(session_id))
        except StoreError:
            return False

    def _is_stored(self, session_id: str) -> bool:
        (found,) = Documents(self._store()).get(_COLLECTION, [session_id])
        return found is not None
