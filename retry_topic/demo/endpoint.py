"""The endpoint: a real HTTP server in a process of its own that fails in real ways and keeps the books.

    POST /hook      header Record-Id, Attempt, Due-Ms (0 on a first delivery), Received-Ms (when the consumer got it)
    GET  /report    what it has seen, as JSON

Run as `python -m retry_topic.demo.endpoint`; prints its port on the first line of stdout.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retry_topic.demo.failure_profile import Mood, temper_of

HANG_S = 1.2  # well past the consumer's timeout


class Books:
    """What arrived and what was accepted. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._by_attempt: Counter[int] = Counter()
        self._moods: Counter[str] = Counter()
        self._lateness_ms: list[int] = []

    def arrived(self, record_id: str, due_ms: int, received_ms: int) -> Mood:
        """Count a request; what the endpoint does with it."""
        temper = temper_of(record_id)
        with self._lock:
            self._requests[record_id] += 1
            if due_ms:
                self._lateness_ms.append(received_ms - due_ms)
            failing = temper.times is None or self._requests[record_id] <= temper.times
            mood = temper.mood if failing else Mood.FINE
            self._moods[mood.value] += 1
        return mood

    def accept(self, record_id: str, attempt: int) -> None:
        with self._lock:
            self._accepted[record_id] += 1
            self._by_attempt[attempt] += 1

    def report(self, *, full: bool) -> dict[str, Any]:
        with self._lock:
            report: dict[str, Any] = {
                "accepted": len(self._accepted),
                "requests": sum(self._requests.values()),
                "by_attempt": dict(sorted(self._by_attempt.items())),
                "answers": dict(self._moods),
                "duplicated": sum(count - 1 for count in self._accepted.values()),
            }
            if full:
                report["accepted_ids"] = sorted(self._accepted)
                report["lateness_ms"] = self._lateness_ms
            return report


class Handler(BaseHTTPRequestHandler):
    """One request."""

    books: Books
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        record_id = self.headers.get("Record-Id") or ""
        number = {name: int(self.headers.get(name) or 0) for name in ("Attempt", "Due-Ms", "Received-Ms")}
        mood = self.books.arrived(record_id, number["Due-Ms"], number["Received-Ms"])
        match mood:
            case Mood.FINE:
                json.loads(body)
                self.books.accept(record_id, number["Attempt"])
                self._answer(200)
            case Mood.BUSY:
                self._answer(503)
            case Mood.THROTTLED:
                self._answer(429, {"Retry-After": "1"})
            case Mood.GONE:
                self._answer(410)
            case Mood.HANG:
                time.sleep(HANG_S)
                self.close_connection = True
            case Mood.RESET:
                # lingering for zero seconds turns the close into a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

    def do_GET(self) -> None:
        body = json.dumps(self.books.report(full=self.path.endswith("?full"))).encode()
        self._answer(200, {"Content-Type": "application/json"}, body)

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """The books are the log."""


class Server(ThreadingHTTPServer):
    """Many connections at once; resets are its trade, not its errors."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _end_with_stdin(server: Server) -> None:
    """The endpoint ends with whoever started it: the pipe closes."""
    sys.stdin.read()
    server.shutdown()


def main() -> None:
    Handler.books = Books()
    with Server(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
