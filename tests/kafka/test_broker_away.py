"""A broker does nothing, or answers late, for longer than any lease lasts.

Meanwhile memory does not grow, and no message is lost or doubled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retry_topic import Connection, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.intake.taken import Taken
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed
from tests.servers.valkey import temporary_server
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.store import MAX_BATCH, Item

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.faulty_proxy import FaultyProxy
    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(420)]

LEASE_MS = 25_000  # renewed about every eight seconds; long, because the machine may be busy
AWAY_S = 60.0  # longer than the lease, a delivery (8 s) and a transaction (30 s) may last
COUNT = 20_000  # messages that are due
FAILED = 20_000  # messages in the retry topic
GROWTH_MB = 50  # enough for the messages that are in memory at the start


@pytest.fixture
def proxy(kafka: TemporaryKafka) -> Iterator[FaultyProxy]:
    """A proxy in front of the test session's broker."""
    with kafka.proxy() as proxy:
        yield proxy


@contextmanager
def frozen(kafka: TemporaryKafka, proxy: FaultyProxy) -> Iterator[None]:
    """Stop the broker's process for the block. Its connections stay open."""
    kafka.freeze()
    try:
        yield
    finally:
        kafka.thaw()


@contextmanager
def slow(kafka: TemporaryKafka, proxy: FaultyProxy) -> Iterator[None]:
    """Delay the broker's replies by a minute in the block, but not its work. So the result of a commit is in doubt."""
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
    until: Until,
    away: Callable[[TemporaryKafka, FaultyProxy], contextmanager[None]],
) -> None:
    """The broker is away while messages are sent and taken in. Meanwhile no new claim opens, and the shard keeps its
    owner. When the broker continues, each message arrives once."""
    topic = redelivery_topic_of(name)
    # shorter than the outage, so that an abandoned transaction ends during it
    broker = KafkaBroker(f"127.0.0.1:{proxy.port}", partitions=2, transaction_timeout_ms=30_000)
    policy = RetryPolicy(delay=Fixed(base_ms=86_400_000))  # messages that are taken in wait in the store
    config = ServiceConfig(batch=20, dispatcher=DispatcherConfig(lease_ms=LEASE_MS))
    taken: list[Taken] = []
    with (
        temporary_server() as server,
        connect(server.url, broker=broker, namespace=name) as connection,
        closing(KafkaBroker(kafka.bootstrap)) as direct,
    ):

        def schedule(first: int, last: int) -> None:
            for start in range(first, last, MAX_BATCH):
                numbers = range(start, start + MAX_BATCH)
                items = [Item(f"m{n}", 0, encode_body(Message(topic, b"%d" % n)), topic) for n in numbers]
                connection.store.schedule(items)

        def fail(first: int, last: int) -> None:
            records = [Message(retry_topic_of(name), b"%d" % n, b"%d" % n) for n in range(first, last)]
            assert not any(direct.publish(records))

        def completed() -> int:
            return connection.store.counts().happened("completed")

        with RetryService(connection, name, policy, config=config, seen=taken.append) as service:
            fail(0, 100)
            schedule(0, COUNT // 2)
            until(lambda: service.stats.published > 0 and len(taken) > 0, lambda: (service, len(taken)))
            with RetryService(connection, name, policy, config=config, seen=taken.append) as standing_by:
                schedule(COUNT // 2, COUNT)
                fail(100, FAILED)
                with away(kafka, proxy):
                    assert len(taken) < FAILED, "all messages were taken in before the outage"
                    assert completed() < COUNT, "all messages were sent before the outage"
                    before = _memory_mb()
                    until_s = time.monotonic() + AWAY_S
                    while time.monotonic() < until_s:
                        assert service.stats.in_flight <= 3 * MAX_BATCH
                        time.sleep(0.05)  # polls while the outage lasts
                    grown_mb = _memory_mb() - before
                    open_ids = connection.store.counts().total("leased")
                assert open_ids <= 2 * MAX_BATCH
                assert grown_mb < GROWTH_MB
                until(
                    lambda: (
                        completed() == COUNT
                        and connection.store.counts().now == {("due", retry_topic_of(name)): FAILED}
                    ),
                    lambda: (connection.store.counts(), service, standing_by),
                    pause_s=0.05,
                )
                sent = standing_by.stats.published
        stored = Counter(int(message.value) for message in _waiting(connection))
    assert sent == 0, "the owner's lease has run out"
    assert Counter(int(message.value) for message in committed(topic)) == Counter(range(COUNT))
    assert stored == Counter(range(FAILED))


def _waiting(connection: Connection) -> Iterator[Message]:
    cursor = None
    while True:
        page = connection.store.list_items("due", cursor=cursor, limit=MAX_BATCH)
        for found in page.found:
            yield decode_body(found.body)
        if (cursor := page.cursor) is None:
            return


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
