"""A dispatcher is killed between publishing and settling, so its messages are published twice. Both copies are the same
message and the same attempt."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import RetryPolicy
from retry_topic.message.headers import read
from wheel_sched.dispatcher import DispatcherConfig

if TYPE_CHECKING:
    from conftest import Bench, Handler

    from retry_topic import Message

pytestmark = pytest.mark.real

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]

# Claims and publishes the due items, and dies before it settles them.
SERVICE = """
import os, signal, sys, threading
from retry_topic import RetryService, ServiceConfig, connect
from retry_topic.release.broker_publisher import BrokerPublisher
from wheel_sched.dispatcher import DispatcherConfig

publish = BrokerPublisher.publish

def dying(self, batch):
    publish(self, batch)
    os.kill(os.getpid(), signal.SIGKILL)

BrokerPublisher.publish = dying
config = ServiceConfig(hand_over="settle", dispatcher=DispatcherConfig(lease_ms=300))
RetryService(connect(sys.argv[1]), "billing", config=config).start()
threading.Event().wait()
"""


def kill_over_a_copy(bench: Bench) -> None:
    """Run a service in another process that sends the due messages and is killed before it settles them."""
    assert bench.url is not None
    child = subprocess.run([sys.executable, "-c", SERVICE, bench.url], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL


def serve(bench: Bench, policy: RetryPolicy) -> None:
    bench.serve(policy, hand_over="settle", dispatcher=DispatcherConfig(lease_ms=300))


def test_a_copy_of_what_has_succeeded_is_not_buried_when_it_fails(
    server: Bench, handler: Handlers, policy: Policy
) -> None:
    """The first copy succeeds, and the second fails at the last attempt. Both have one id, and there is
    no dead letter."""
    handle = handler(None, ValueError("the second time"))
    consumer = server.consume(handle)
    server.connection.publish("orders", b"m", delay=0.01, id="daily")
    kill_over_a_copy(server)
    server.until(lambda: consumer.stats.acknowledged == 1)
    serve(server, policy(max_attempts=1))
    server.until(lambda: len(server.taken) == 1)
    assert [(call.state.id, call.attempt) for call in handle.calls] == [("daily", 1)] * 2
    server.until(lambda: not server.waiting())  # the service may settle what it has sent a moment later
    assert (server.taken[0].duplicate, server.letters()) == (True, [])


def test_two_copies_that_fail_are_one_attempt(server: Bench, handler: Handlers, policy: Policy) -> None:
    """Both copies of the first attempt fail. With max_attempts=2 the message still gets its second attempt."""

    def first_fails(message: Message) -> Any:
        if not read(message.headers).attempt:
            raise ValueError("the first time")

    handle = handler(first_fails)
    server.consume(handle)
    server.connection.publish("orders", b"m", delay=0.01)
    kill_over_a_copy(server)
    server.until(lambda: len(handle.calls) == 1)
    serve(server, policy(max_attempts=2, base_ms=1))
    server.until(lambda: len(server.taken) == 2)
    server.until(lambda: len(handle.calls) == 3)
    assert sorted(handle.attempts) == [1, 1, 2]
    assert [one.duplicate for one in server.taken] == [False, True]
    assert (server.letters(), len({call.state.id for call in handle.calls})) == ([], 1)
