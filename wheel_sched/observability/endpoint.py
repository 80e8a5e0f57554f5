"""A small HTTP server for operators, with pages such as `/metrics`, `/livez` and `/readyz`.

An address without a host means loopback. The server answers only GET, and only for the pages that it was given. Each
connection has its own thread, so a slow scrape does not delay a probe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from wheel_sched.errors import ConfigError


class PageReply(NamedTuple):
    """The answer to a request for a page."""

    status: HTTPStatus
    content_type: str
    body: bytes


Page = Callable[[], PageReply]

_TEXT = "text/plain; charset=utf-8"


def verdict(problems: Callable[[], list[str]]) -> Page:
    """Make the page of a probe. It answers 200 and "ok" if `problems` returns none, else 503 and a line per problem."""

    def page() -> PageReply:
        found = problems()
        if not found:
            return PageReply(HTTPStatus.OK, _TEXT, b"ok\n")
        return PageReply(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, "".join(f"{line}\n" for line in found).encode())

    return page


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, `[IPv6]:PORT`, `:PORT` or `PORT`; the last two mean loopback. Port 0 means any free port.

    Raises:
        ConfigError: the text has none of these forms.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError([f"expected HOST:PORT with a port from 0 to 65535, got: {text!r}"])
    return host or "127.0.0.1", int(port)


class Endpoint:
    """An HTTP server that runs from its creation until `close`.

    Args:
        host: address to bind to.
        port: port to bind to; 0 for any free port.
        pages: the page of each path, such as {"/livez": verdict(...)}.

    Raises:
        ConfigError: the address cannot be bound.

    Thread rules: any thread may call `close`, repeatedly. The server calls pages from its own threads.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        served = dict(pages)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30  # seconds until the connection of a silent client is closed

            def do_GET(self) -> None:
                page = served.get(self.path.partition("?")[0])
                if page is None:
                    listed = "".join(f"{path}\n" for path in served).encode()
                    self._answer(PageReply(HTTPStatus.NOT_FOUND, _TEXT, listed))
                    return
                try:
                    reply = page()
                except Exception as error:  # the error becomes the answer, and the service continues
                    reply = PageReply(
                        HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{type(error).__name__}: {error}\n".encode()
                    )
                self._answer(reply)

            def _answer(self, reply: PageReply) -> None:
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
                """Log nothing, because probes come every few seconds."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False  # a client with an open connection does not delay the end

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                [f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port"]
            ) from None
        self.host, self.port = str(self._server.server_address[0]), int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="wheel-sched-endpoint", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """`http://host:port`, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Stop listening, and wait until the thread that listens has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
