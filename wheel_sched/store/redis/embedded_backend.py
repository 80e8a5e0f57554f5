"""A Redis backend that owns the embedded server it talks to."""

from __future__ import annotations

from wheel_sched.store.embedded import EmbeddedServer
from wheel_sched.store.redis.backend import Client, RedisBackend
from wheel_sched.store.redis.conversation import Dialect


class EmbeddedBackend(RedisBackend):
    """`close` also lets go of the server, which ends it when this process started it."""

    def __init__(self, server: EmbeddedServer, client: Client, dialect: Dialect) -> None:
        super().__init__(client, dialect, owns_client=True)
        self.server = server

    def close(self) -> None:
        super().close()
        self.server.close()
