"""Real processes are listed by `wheel-sched ps` while they live, and leave the list when they stop or are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, RetryService, ServiceConfig, connect
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.errors import ConfigError
from wheel_sched.store import Members

if TYPE_CHECKING:
    from retry_topic import Connection

CONSUMER = """
import sys
from retry_topic import Consumer, ConsumerConfig, connect

def fail(message):
    raise ValueError("no such customer")

with connect(sys.argv[1]) as connection:
    Consumer(connection, "orders", fail, group="billing", config=ConsumerConfig(announce_ms=200)).run()
"""


def until(holds: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)  # polls until the other process has made its call


def nothing(message: Message) -> None:
    pass


def test_a_consumer_and_a_service_announce_what_they_are(quick_poll: None) -> None:
    """A consumer and a service are listed with their topics and counts while they run, and not after they stop."""
    with connect("memory:", create_topics=True) as connection:
        live = Members(connection.store).live
        with Consumer(connection, ["orders", "returns"], nothing, group="billing"), RetryService(connection, "billing"):
            until(lambda: len(live()) == 2, "the service and the consumer were not announced")
            consumer, service = sorted((one.member for one in live()), key=lambda member: member.kind)
        assert live() == []
    assert (consumer.kind, consumer.name, consumer.releases) == ("consumer", "billing", False)
    assert (consumer.topics, consumer.retries_to) == (("orders", "returns", "billing.redelivery"), "billing.retry")
    assert (service.kind, service.name, service.releases) == ("retry-service", "billing", True)
    assert service.takes_in == ("billing.retry",)
    assert consumer.holds == service.holds == {"in_flight": 0}
    assert len(service.lateness) == len(LATENESS_BUCKETS_MS) + 1
    assert consumer.pid == service.pid == os.getpid()


def test_a_service_announces_itself_no_more_often_than_its_dispatcher_sweeps() -> None:
    """By default, an idle service sends at most one announcement between two sweeps of its dispatcher."""
    assert ServiceConfig().announce_ms >= DispatcherConfig().sweep_ms


def test_one_setting_switches_it_off(quick_poll: None) -> None:
    """With `announce_ms=0` a consumer or a service does not announce itself. A negative value is refused."""
    with connect("memory:", create_topics=True) as connection:
        with (
            Consumer(connection, "orders", nothing, group="billing", config=ConsumerConfig(announce_ms=0)),
            RetryService(connection, "billing", config=ServiceConfig(announce_ms=0)),
        ):
            time.sleep(0.2)  # longer than an announcement would take
            assert Members(connection.store).live() == []
        for make in (ConsumerConfig, ServiceConfig):
            with pytest.raises(ConfigError, match="announce_ms"):
                make(announce_ms=-1)


@pytest.mark.real
@pytest.mark.slow
def test_killed_processes_leave_the_list_and_doctor_says_what_to_start(
    cli: Any, connection: Connection, redis_url: str, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A killed process is listed until its lease ends. Then `doctor` names the command that starts a service again."""

    def pids() -> dict[str, int]:
        return {one["kind"]: one["pid"] for one in cli.objects("ps")}

    def retries() -> dict[str, str]:
        (found,) = [one for one in cli.json("doctor", code=None)["findings"] if one["check"] == "retries"]
        return found  # type: ignore[no-any-return]

    connection.broker.create_topic("orders")
    service = started("--store", redis_url, "serve", "billing", "--announce", "1")
    consumer = subprocess.Popen([sys.executable, "-c", CONSUMER, redis_url])
    try:
        until(lambda: len(cli.objects("ps")) == 2, "the service and the consumer were not listed")
        assert pids() == {"consumer": consumer.pid, "retry-service": service.pid}
        assert retries()["level"] == "ok"
        service.kill()
        service.wait()
        assert "retry-service" in pids()
        until(lambda: pids() == {"consumer": consumer.pid}, "the killed service stays on the list")
        assert (retries()["level"], retries()["fix"]) == ("warn", "start `wheel-sched serve billing`")
        again = started("--store", redis_url, "serve", "billing")
        until(lambda: pids() == {"consumer": consumer.pid, "retry-service": again.pid}, "the new service is not listed")
        assert retries()["level"] == "ok"
        again.send_signal(signal.SIGTERM)
        again.wait(30)
        assert pids() == {"consumer": consumer.pid}  # the service left at its stop; its lease lasts longer
    finally:
        consumer.kill()
        consumer.wait()
    until(lambda: pids() == {}, "the killed consumer stays on the list")
