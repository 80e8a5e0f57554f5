"""Imports everything that a worker's threads will need, before they are started.

A process that is forked while one of its threads imports a module finds that module's lock taken, for good: embedded
beat hung on its first ETA task that way. So no thread of ours imports anything; a test listens to each import.

Owner: the main thread, before a fork.
"""

from __future__ import annotations

import encodings.idna
import hmac
import importlib
import importlib.resources
import secrets
from typing import Final

from wheel_sched_celery.wheel import Wheel

ON_FIRST_USE: Final = (encodings.idna, hmac, secrets)  # what Python and redis-py import on their first connection


def preload(wheel: Wheel) -> None:
    """Import what opening the store and the broker of `wheel`, and dispatching, take; connects to neither."""
    url = wheel.settings.url
    names = ["wheel_sched.store.redis.backend", "wheel_sched.store.redis.library"]
    if isinstance(url, str) and url.startswith("embedded:"):
        names += ["wheel_sched.store.embedded", "wheel_sched.store.redis.embedded_backend"]
    for name in names:
        importlib.import_module(name)
    importlib.import_module("wheel_sched.store.redis.library").library("")  # reads the scripts
    connection = wheel.app.connection_for_write()
    try:
        _ = connection.transport
        for name in ("kombu.utils.amq_manager", connection.get_transport_cls().__module__):
            importlib.import_module(name)
    finally:
        connection.release()
