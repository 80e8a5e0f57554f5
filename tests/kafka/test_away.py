"""A broker that stands still, or is slow to answer, for longer than every lease: nothing grows, is lost or doubled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retry_topic import RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message import Message
from retry_topic.names import redelivery_topic_of
from retry_topic.wire import encode_body
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.store import MAX_BATCH, Item
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.faulty_proxy import FaultyProxy
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(420)]

PATIENCE_S = 180.0
LEASE_MS = 25_000  # renewed every eight seconds or so, by whoever gets the processor
AWAY_S = 60.0  # longer than the lease, a delivery (8 s) and a transaction (30 s) may last
COUNT = 20_000


@pytest.fixture
def proxy(kafka: TemporaryKafka) -> Iterator[FaultyProxy]:
    """In front of the session's broker."""
    with kafka.proxy() as proxy:
        yield proxy


@contextmanager
def frozen(kafka: TemporaryKafka, proxy: FaultyProxy) -> Iterator[None]:
    """It does nothing at all."""
    kafka.freeze()
    try:
        yield
    finally:
        kafka.thaw()


@contextmanager
def slow(kafka: TemporaryKafka, proxy: FaultyProxy) -> Iterator[None]:
    """It does what it is asked for, and whoever asked hears of it a minute later: in doubt is what was committed."""
    proxy.delay_ms = round(AWAY_S * 1000)
    try:
        yield
    finally:
        proxy.delay_ms = 0


@pytest.mark.parametrize("away", [frozen, slow])
def test_a_broker_that_is_away_for_a_minute(
    kafka: TemporaryKafka,
    proxy: FaultyProxy,
    name: str,
    committed: Callable[[str], list[Message]],
    away: Callable[[TemporaryKafka, FaultyProxy], contextmanager[None]],
) -> None:
    """No more is claimed than before, the shard stays its owner's, and when the broker goes on all is there once."""
    topic = redelivery_topic_of(name)
    # ends a transaction that nobody goes on with before the outage is over
    broker = KafkaBroker(f"127.0.0.1:{proxy.port}", partitions=2, transaction_timeout_ms=30_000)
    config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=LEASE_MS))
    with temporary_server() as server, connect(server.url, broker=broker, namespace=name) as home:
        home.broker.create_topic(topic)
        for start in range(0, COUNT, MAX_BATCH):
            numbers = range(start, start + MAX_BATCH)
            home.store.schedule([Item(f"m{n}", 0, encode_body(Message(topic, b"%d" % n)), topic) for n in numbers])
        with RetryService(home, name, config=config) as service:
            _until(lambda: service.stats.published > 0)
            with RetryService(home, name, config=config) as standing_by:
                with away(kafka, proxy):
                    before = _memory_mb()
                    until_s = time.monotonic() + AWAY_S
                    while time.monotonic() < until_s:
                        assert service.stats.in_flight <= 3 * MAX_BATCH
                        time.sleep(0.05)  # the outage lasts as long as it lasts
                    grown_mb = _memory_mb() - before
                    open_ids = home.store.counts().total("fly")
                assert open_ids <= 2 * MAX_BATCH
                assert grown_mb < 200
                _until(lambda: sum(home.store.counts().total(state) for state in ("due", "fly", "held")) == 0)
                taken = standing_by.stats.published
    assert taken == 0, "the owner's lease has run out"
    assert Counter(int(message.value) for message in committed(topic)) == Counter(range(COUNT))


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)  # other threads' doing; there is nothing to wait on


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
