"""Serves a dashboard with uvicorn in a thread of this process, on a free port of the loopback address."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

_PATIENCE_S = 30.0


class _Server(uvicorn.Server):
    """A server that tells when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its port, and its address without a slash at the end."""

    port: int
    url: str


@contextlib.contextmanager
def served(app: ASGIApp, port: int = 0) -> Iterator[Served]:
    """Serve an app until the end of the block. Open streams are cut then.

    Args:
        app: the app.
        port: the port. Defaults to 0: a free one.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=0))
    thread = threading.Thread(target=server.run, args=([listening],), name="served-dashboard")
    thread.start()
    try:
        assert server.up.wait(_PATIENCE_S), "the server has not started"
        taken = listening.getsockname()[1]
        yield Served(taken, f"http://127.0.0.1:{taken}")
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_S)
        listening.close()
    assert not thread.is_alive()
