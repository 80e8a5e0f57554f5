"""A proxy in front of a real server that loses replies, discards all traffic, or delays replies.

    with FaultyProxy(server.url) as proxy:
        client = redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0))
        proxy.drop_next_reply()
        client.incr("n")  # the server counts; the client sees a ConnectionError

The proxy does not depend on a protocol. The server may be any that answers requests over TCP or a unix socket. Each
connection has two threads. Any thread may call any method while traffic flows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 65536
QUIET_S = 0.02  # a server that is silent for this long has executed and answered the whole pipeline


@dataclass(frozen=True, slots=True)
class ProxyCounts:
    """How many connections there were so far, and how much the proxy has discarded."""

    connections: int = 0
    dropped_replies: int = 0
    dropped_reply_bytes: int = 0
    swallowed_bytes: int = 0


class FaultyProxy:
    """A TCP listener on loopback that forwards all traffic, unless one of its methods says to lose or delay it.

    Args:
        upstream: address of the server: `unix:///path` or `scheme://host:port`. The scheme may be any but `unix`.
        delay_ms: delay of each reply in ms; may be set at any time. Defaults to 0.
        port: the port to listen on. Defaults to 0: any free port.
    """

    def __init__(self, upstream: str, *, delay_ms: int = 0, port: int = 0) -> None:
        self.delay_ms = delay_ms
        self._upstream = upstream
        self._lock = threading.Lock()
        self._armed: deque[bytes] = deque()
        self._silent = False
        self._closing = False
        self._ended = threading.Event()  # ends the delays
        self._links: set[_Link] = set()
        self._connections = self._replies = self._reply_bytes = self._swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name=f"faulty-proxy-{self.port}", daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        """The address of the proxy, as redis-py takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def counts(self) -> ProxyCounts:
        with self._lock:
            return ProxyCounts(self._connections, self._replies, self._reply_bytes, self._swallowed)

    def drop_next_reply(self, containing: bytes = b"") -> None:
        """Let the server execute the next request, lose its reply and close that client's connection.

        Each call loses one reply. Several calls take effect in their order.

        Args:
            containing: choose the next request that contains these bytes. Defaults to none: the next request of any
                connection, which may be the handshake of a new one.
        """
        with self._lock:
            self._armed.append(containing)

    def blackhole(self) -> None:
        """Keep connections open and accept new ones, but discard every byte, as a dead network does."""
        with self._lock:
            self._silent = True

    def heal(self) -> None:
        """Forward everything again and cancel open calls of `drop_next_reply`. Connections that lost
        bytes are closed."""
        with self._lock:
            self._silent = False
            self._armed.clear()
            torn = [link for link in self._links if link.torn]
        for link in torn:
            link.close()

    def cut(self) -> None:
        """Close every open connection. New connections are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def redirect(self, upstream: str) -> None:
        """Close every open connection and forward new ones to another server, as after a failover."""
        self._upstream = upstream
        self.cut()

    def close(self) -> None:
        """Close the listener and all connections, and wait for the threads. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._ended.set()
        with contextlib.suppress(OSError):  # this connection wakes `accept` on every platform
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._acceptor.join()
        self._listener.close()
        while True:
            with self._lock:
                links = list(self._links)
            if not links:
                return
            for link in links:
                link.close()
                link.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        with self._lock:
            mode = "silent" if self._silent else f"armed={len(self._armed)}" if self._armed else "passing"
            return f"<FaultyProxy port={self.port} {mode} connections={len(self._links)} delay_ms={self.delay_ms}>"

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with self._lock:
                if self._closing:
                    client.close()
                    return
            try:
                server = _connect(self._upstream)
            except OSError:  # the server is away: the client sees its connection closed
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._connections += 1
                self._links.add(link)
            link.start()

    # A link calls these for each chunk that it has read.

    def _request_passes(self, link: _Link, chunk: bytes) -> bool:
        with self._lock:
            if self._lose(link, chunk):
                return False
            if self._armed and self._armed[0] in chunk:
                self._armed.popleft()
                link.doomed = True
            return True

    def _reply_passes(self, link: _Link, chunk: bytes) -> bool:
        with self._lock:
            return not self._lose(link, chunk)

    def _lose(self, link: _Link, chunk: bytes) -> bool:
        if self._silent:
            link.torn = True
        if link.torn:  # after lost bytes, the rest of the stream is discarded too
            self._swallowed += len(chunk)
        return link.torn

    def _reply_dropped(self, size: int) -> None:
        with self._lock:
            self._replies += 1
            self._reply_bytes += size

    def _gone(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client, its connection to the server, and a thread for each direction."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, server: socket.socket) -> None:
        self.doomed = False  # the next reply will be lost
        self.torn = False  # bytes were discarded
        self._proxy = proxy
        self._client = client
        self._server = server
        self._requests = threading.Thread(target=self._pump_requests, daemon=True)
        self._replies = threading.Thread(target=self._pump_replies, daemon=True)

    def start(self) -> None:
        self._requests.start()
        self._replies.start()

    def close(self) -> None:
        """Shut down both connections, which wakes both threads. The reply thread then closes the sockets."""
        for connection in (self._client, self._server):
            with contextlib.suppress(OSError):  # already ended
                connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        if threading.current_thread() is not self._replies:
            self._replies.join()

    def _pump_requests(self) -> None:
        with contextlib.suppress(OSError):  # one side closed the connection
            while chunk := self._client.recv(CHUNK_BYTES):
                if self._proxy._request_passes(self, chunk):
                    self._server.sendall(chunk)
        self.close()

    def _pump_replies(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._server.recv(CHUNK_BYTES):
                if self.doomed:
                    self._proxy._reply_dropped(len(chunk) + self._drain())
                    break
                if self._proxy.delay_ms:
                    self._proxy._ended.wait(self._proxy.delay_ms / 1000)
                if self._proxy._reply_passes(self, chunk):
                    self._client.sendall(chunk)
        self.close()
        self._requests.join()
        self._client.close()
        self._server.close()
        self._proxy._gone(self)

    def _drain(self) -> int:
        """Read until the server is silent, so that the server executes a long pipeline to its end. Return the
        number of bytes."""
        self._server.settimeout(QUIET_S)
        size = 0
        with contextlib.suppress(TimeoutError):
            while chunk := self._server.recv(CHUNK_BYTES):
                size += len(chunk)
        return size


def _connect(upstream: str) -> socket.socket:
    parts = urlsplit(upstream)
    if parts.scheme != "unix":
        return socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=None)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.fsencode(unquote(parts.path)))
    except BaseException:
        connection.close()
        raise
    return connection
