"""The endpoint: a real HTTP server in its own process. It fails in real ways and counts every request.

    POST /hook      headers: Record-Id, Attempt, Due-Ms (0 on a first delivery), Received-Ms (when the consumer got it)
    GET  /report    the counts as JSON; `?full` adds the accepted ids and each lateness

Run it as `python -m retry_topic.demo.endpoint`. The first line of its stdout is its port.
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

from retry_topic.demo.failure_profile import Answer, failure_profile_of

HANG_S = 1.2  # well above the consumer's timeout


class RequestCounts:
    """Counts of the requests that arrived and of those that were accepted. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._by_attempt: Counter[int] = Counter()
        self._answers: Counter[str] = Counter()
        self._lateness_ms: list[int] = []

    def arrived(self, record_id: str, due_ms: int, received_ms: int) -> Answer:
        """Count a request and choose the answer to it."""
        profile = failure_profile_of(record_id)
        with self._lock:
            self._requests[record_id] += 1
            if due_ms:
                self._lateness_ms.append(received_ms - due_ms)
            failing = profile.times is None or self._requests[record_id] <= profile.times
            answer = profile.answer if failing else Answer.FINE
            self._answers[answer.value] += 1
        return answer

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
                "answers": dict(self._answers),
                "duplicated": sum(count - 1 for count in self._accepted.values()),
            }
            if full:
                report["accepted_ids"] = sorted(self._accepted)
                report["lateness_ms"] = self._lateness_ms
            return report


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    counts: RequestCounts
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        record_id = self.headers.get("Record-Id") or ""
        number = {name: int(self.headers.get(name) or 0) for name in ("Attempt", "Due-Ms", "Received-Ms")}
        answer = self.counts.arrived(record_id, number["Due-Ms"], number["Received-Ms"])
        match answer:
            case Answer.FINE:
                json.loads(body)
                self.counts.accept(record_id, number["Attempt"])
                self._answer(200)
            case Answer.BUSY:
                self._answer(503)
            case Answer.THROTTLED:
                self._answer(429, {"Retry-After": "1"})
            case Answer.GONE:
                self._answer(410)
            case Answer.HANG:
                time.sleep(HANG_S)
                self.close_connection = True
            case Answer.RESET:
                # SO_LINGER with zero seconds turns the close into a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

    def do_GET(self) -> None:
        body = json.dumps(self.counts.report(full=self.path.endswith("?full"))).encode()
        self._answer(200, {"Content-Type": "application/json"}, body)

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Write no log: the counts are enough."""


class Server(ThreadingHTTPServer):
    """Serves many connections at once. It resets connections on purpose, so it reports no OSError."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _end_with_stdin(server: Server) -> None:
    """Stop the server when stdin closes: then the parent process is gone."""
    sys.stdin.read()
    server.shutdown()


def main() -> None:
    Handler.counts = RequestCounts()
    with Server(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
