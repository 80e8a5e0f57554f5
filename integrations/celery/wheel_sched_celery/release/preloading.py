"""Imports every module that the threads of a worker will need, before they start.

If a process forks while one of its threads imports a module, the child can never import that module, because the
module's lock stays locked in the child. Embedded beat once hung on its first ETA task for this reason. So no thread of
this integration imports a module; a test watches all imports.

Threads: the main thread calls `preload`, before it forks.
"""

from __future__ import annotations

import encodings.idna
import hmac
import importlib
import importlib.resources
import secrets
from typing import Final

from wheel_sched_celery.wheel import Wheel

ON_FIRST_USE: Final = (encodings.idna, hmac, secrets)  # Python and redis-py import these at the first connection


def preload(wheel: Wheel) -> None:
    """Import the modules that the store, the broker and the dispatcher of `wheel` need. Connects to nothing."""
    url = wheel.settings.url
    names = ["wheel_sched.store.redis.backend", "wheel_sched.store.redis.library"]
    if isinstance(url, str) and url.startswith("embedded:"):
        names += ["wheel_sched.store.embedded", "wheel_sched.store.redis.embedded_backend"]
    for name in names:
        importlib.import_module(name)
    importlib.import_module("wheel_sched.store.redis.library").library("")  # reads the scripts
    _ = wheel.app.backend, wheel.app.timezone  # for ticks of beat
    connection = wheel.app.connection_for_write()
    try:
        _ = connection.transport
        for name in ("kombu.utils.amq_manager", connection.get_transport_cls().__module__):
            importlib.import_module(name)
    finally:
        connection.release()
