"""The HTTP endpoint for probes and metrics, over real HTTP."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from wheel_sched.errors import ConfigError
from wheel_sched.observability import Endpoint, dead_parts, parse_address, unready_parts, verdict


class Part:
    """A part of a service whose state the test sets."""

    def __init__(self, *problems: str, ready: bool = True) -> None:
        self.found = list(problems)
        self.ready = ready

    def problems(self) -> list[str]:
        return self.found


def get(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=40)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def endpoint(part: Part) -> Iterator[Endpoint]:
    parts = {"orders": part}

    def broken() -> list[str]:
        raise RuntimeError("no")

    pages = {
        "/livez": verdict(lambda: dead_parts(parts)),
        "/readyz": verdict(lambda: unready_parts(parts)),
        "/broken": verdict(broken),
    }
    with Endpoint("127.0.0.1", 0, pages) as running:
        yield running


@pytest.mark.parametrize(
    ("problems", "ready", "live", "readiness"),
    [
        ([], True, (200, "ok\n"), (200, "ok\n")),
        ([], False, (200, "ok\n"), (503, "orders: not started, or the store or the broker is away\n")),
        (["its thread has ended"], True, (503, "orders: its thread has ended\n"), (200, "ok\n")),
        (["one", "two"], True, (503, "orders: one\norders: two\n"), (200, "ok\n")),
    ],
)
def test_liveness_is_local_and_readiness_is_not(
    endpoint: Endpoint,
    part: Part,
    problems: list[str],
    ready: bool,
    live: tuple[int, str],
    readiness: tuple[int, str],
) -> None:
    """`/livez` fails if a thread is stuck or has ended, which a restart can repair. `/readyz` fails if the store or
    the broker is away.
    """
    part.found, part.ready = problems, ready
    assert get(endpoint, "/livez") == live
    assert get(endpoint, "/readyz?verbose") == readiness


def test_a_page_that_fails_is_answered_and_the_next_request_too(endpoint: Endpoint) -> None:
    """A page that raises an error is answered with 500, and the next request is served."""
    assert get(endpoint, "/broken") == (HTTPStatus.INTERNAL_SERVER_ERROR, "RuntimeError: no\n")
    assert get(endpoint, "/livez")[0] == HTTPStatus.OK


def test_unknown_pages_and_methods_are_refused(endpoint: Endpoint) -> None:
    """A 404 answer lists the existing pages. Methods other than GET are refused."""
    assert get(endpoint, "/etc/passwd") == (404, "/livez\n/readyz\n/broken\n")
    assert get(endpoint, "/livez", "POST")[0] == HTTPStatus.NOT_IMPLEMENTED


def test_a_silent_client_holds_up_neither_probe_nor_end(endpoint: Endpoint) -> None:
    """A client that sends nothing delays neither other requests nor `close`."""
    with socket.create_connection((endpoint.host, endpoint.port)):
        assert get(endpoint, "/livez")[0] == HTTPStatus.OK
        closing = threading.Thread(target=endpoint.close)
        closing.start()
        closing.join(40)
        assert not closing.is_alive()


def test_a_taken_port_is_an_error_that_names_it(endpoint: Endpoint) -> None:
    """If the port is in use, the error names the address and says to choose another port."""
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{endpoint.port}: .*; choose another port"):
        Endpoint("127.0.0.1", endpoint.port, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9464", ("::1", 9464)),
        ("metrics.internal:1", ("metrics.internal", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """`parse_address` reads HOST:PORT. If the text has no host, the host is 127.0.0.1."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "host:", "1:65536", "1:-1", "1:²", "host:1.5"])
def test_wrong_addresses(text: str) -> None:
    """`parse_address` refuses a text that is not HOST:PORT."""
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(text)
