"""One RESP command over a unix socket, without a client library: is the server up, loading, or away?"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

State = Literal["up", "loading", "away"]


def ping(socket_path: Path, timeout_s: float = 0.5) -> State:
    """Send PING. Returns `loading` for the answer LOADING, `away` without an answer, `up` for any other answer.

    The other answers include the errors of a busy script and of a missing password.
    """
    try:
        reply = ask(socket_path, "PING", timeout_s=timeout_s)
    except OSError:
        return "away"
    if not reply:
        return "away"
    return "loading" if reply.startswith(b"-LOADING") else "up"


def ask(socket_path: Path, *command: str, timeout_s: float = 0.5) -> bytes:
    """Send a command. Returns the raw reply, up to 64 KiB; empty: the server closed the connection. Raises OSError."""
    request = b"*%d\r\n" % len(command)
    for word in command:
        request += b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(os.fsencode(socket_path))
        connection.sendall(request)
        return connection.recv(65536)
