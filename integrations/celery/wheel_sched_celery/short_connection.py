"""A connection of our own to the broker that gives up soon: the app's may wait for ever for a broker that hangs."""

from __future__ import annotations

from typing import Any, Final

CONNECT_S: Final = 5.0  # to connect, and of a Redis for each answer


def short_connection(app: Any) -> Any:
    """Not connected yet; whoever asks for it releases it. The app's own `broker_transport_options` come first."""
    connection = app.connection_for_write(heartbeat=0)
    connection.connect_timeout = min(connection.connect_timeout or CONNECT_S, CONNECT_S)
    if connection.transport.driver_type == "redis":
        limits = {"socket_timeout": CONNECT_S, "socket_connect_timeout": CONNECT_S}
        connection.transport_options = {**limits, **(connection.transport_options or {})}
    return connection
