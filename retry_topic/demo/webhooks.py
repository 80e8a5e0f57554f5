"""The demo's consumer: posts each record as a webhook. Run it as `python -m retry_topic.demo.webhooks URL PORT`."""

from __future__ import annotations

import http.client
import logging
import signal
import sys
import threading
import time

from retry_topic import Consumer, ConsumerConfig, Message, connect
from retry_topic.message.headers import read

TOPIC = "airports"
GROUP = "webhooks"
TIMEOUT_S = 0.5
HISTORY = 100_000  # attempts that the store keeps: enough for a whole run


class WebhookRefused(Exception):
    """The endpoint answered with an error status. Retry policies read `status` and `headers`."""

    def __init__(self, status: int, headers: http.client.HTTPMessage) -> None:
        self.status = status
        self.headers = headers
        super().__init__(f"the endpoint answered {status} {http.client.responses.get(status, '')}")


class Deliverer:
    """Posts messages; each thread has its own HTTP connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()

    def __call__(self, message: Message) -> None:
        received_ms = time.time_ns() // 1_000_000
        state = read(message.headers)
        connection = self._connection()
        try:
            connection.request(
                "POST",
                "/hook",
                body=message.value,
                headers={
                    "Record-Id": (message.key or b"").decode(),
                    "Attempt": str(state.attempt + 1),
                    "Due-Ms": str(state.due_ms or 0),
                    "Received-Ms": str(received_ms),
                },
            )
            response = connection.getresponse()
            response.read()
        except BaseException:
            connection.close()
            raise
        if response.status >= 400:
            raise WebhookRefused(response.status, response.headers)

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
            self._local.connection = connection
        return connection


def main() -> None:
    logging.getLogger("retry_topic").setLevel(
        logging.ERROR
    )  # the demo fails on purpose; its report counts the failures
    url, port = sys.argv[1], int(sys.argv[2])
    with connect(url) as connection:
        config = ConsumerConfig(concurrency=48, idle_ms=5_000, history=HISTORY)
        consumer = Consumer(connection, TOPIC, Deliverer(port), group=GROUP, config=config)
        consumer.start()
        signal.signal(signal.SIGTERM, lambda *_: sys.stdin.close())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        consumer.stop(5)


if __name__ == "__main__":
    main()
