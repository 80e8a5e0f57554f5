"""A store that is opened when a page first needs it. So a program with a dashboard starts even if its store is down."""

from __future__ import annotations

import contextlib
import threading

from wheel_sched.config import Settings
from wheel_sched.errors import NotDone, StoreUnavailable
from wheel_sched.extensions import installed
from wheel_sched.management.opening import opened
from wheel_sched.redacting import redacted
from wheel_sched.store import DelayStore


class LazyStore:
    """Opens the store that the settings name, once. Does not create a namespace. Thread-safe.

    Args:
        settings: the settings that name the store.
    """

    def __init__(self, settings: Settings) -> None:
        self.namespace = settings.namespace
        self._settings = settings
        self._lock = threading.Lock()
        self._store: DelayStore | None = None
        self._open = contextlib.ExitStack()

    def opened(self) -> DelayStore:
        """The open store.

        Raises:
            StoreError: the store cannot be opened now, or there is no such namespace yet. The next call tries again.
        """
        with self._lock:
            if self._store is None:
                try:
                    self._store = self._open.enter_context(opened(self._settings))
                except NotDone as error:
                    raise StoreUnavailable(
                        f"there is no namespace {self.namespace!r} in {redacted(self._settings.store)} yet: nothing "
                        f"was changed; check the address and the namespace, or start {installed().dispatchers}"
                    ) from error
            return self._store

    def close(self) -> None:
        """Close the store if it is open. Idempotent. A later call of `opened` opens it again."""
        with self._lock:
            self._store = None
            self._open.close()
