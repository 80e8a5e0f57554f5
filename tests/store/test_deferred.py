"""A connection that sends commands now and reads their replies later."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.servers.valkey import TemporaryServer
from wheel_sched.store import open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Count
from wheel_sched.store.redis.backend import client_for
from wheel_sched.store.redis.deferred import DeferredConnection

pytestmark = pytest.mark.real


def test_an_interrupted_caller_leaves_no_reply_to_others(real_server: TemporaryServer) -> None:
    """If a caller is interrupted before it has read its replies, no other caller gets them."""
    with client_for(real_server.url) as client:
        connection: Any = client
        line = DeferredConnection(client)
        line.send([("ECHO", "first")])
        del line
        assert connection.execute_command("ECHO", "second") == b"second"
        line = DeferredConnection(client)
        line.send([("ECHO", "third"), ("ECHO", "fourth")])
        assert line.replies() == [b"third", b"fourth"]
        line.close()


def test_threads_may_begin_at_the_same_time(real_server: TemporaryServer, namespace: str) -> None:
    """Eight threads send calls at the same time. Each gets its own answer, because each has its own connection."""
    with open_store(real_server.url, namespace=namespace) as store, ThreadPoolExecutor(8) as pool:
        begun = pool.map(lambda _: store.begin([Call(0, Count())]).answers(), range(200))
        assert all(not isinstance(answer, Exception) for (answer,) in begun)
