"""The simulated brokers pass the public conformance suite for brokers, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from retry_topic.brokers.conformance import BrokerConformance
from retry_topic.brokers.protocol import Broker
from retry_topic.simulation.log_client import RemoteLogBroker
from retry_topic.simulation.log_server import LogServer
from retry_topic.simulation.queue_broker import QueueServer, RemoteBroker
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.substitution import substituted
from wheel_sched.simulation.world import World

pytestmark = pytest.mark.timeout(120)

C = TypeVar("C", bound=type)
PROCESS = "member"


def in_a_world(open_broker: Callable[[World], Broker], case: Callable[..., None]) -> Callable[[Any], None]:
    """Make a test that runs `case` as a task of a simulated process, with a new broker from `open_broker`."""

    def run(self: Any) -> None:
        with substituted(("wheel_sched", "retry_topic")):
            world = World(Scenario(1, "conformance", 1, ()), most_steps=2_000_000)
            ended: list[bool] = []

            def work() -> Callable[[], None]:
                case(self, open_broker(world))
                ended.append(True)
                return lambda: None

            world.add_host(PROCESS, work)
            world.begin()
            world.run(3_600_000, lambda: bool(ended or world.broken), 0)
        assert world.broken == []
        assert ended

    run.__doc__ = case.__doc__
    return run


def simulated(open_broker: Callable[[World], Broker]) -> Callable[[C], C]:
    """Make each inherited case of a class run in a simulated world."""

    def changed(cls: C) -> C:
        for name in dir(cls):
            case = getattr(cls, name)
            if name.startswith("test_") and case is not None:
                setattr(cls, name, in_a_world(open_broker, case))
        return cls

    return changed


def log(world: World) -> Broker:
    """Open a client of a simulated log broker."""
    return RemoteLogBroker(world, LogServer(world, partitions=1, largest_bytes=8 * 1024 * 1024))


def queue(world: World) -> Broker:
    """Open a client of a simulated queue broker."""
    return RemoteBroker(world, QueueServer(world))


@simulated(log)
class TestLog(BrokerConformance):
    """A simulated log broker. It has partitions, offsets and transactions, and keeps the order of records in a
    partition."""

    examples = 5
    poll_tolerance_ms = 100
    keeps_place = False


@simulated(queue)
class TestQueue(BrokerConformance):
    """A simulated queue broker. It leases single records."""

    examples = 5
    poll_tolerance_ms = 100
