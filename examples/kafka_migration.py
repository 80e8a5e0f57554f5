"""Turns a plain confluent-kafka loop into a consumer whose failed messages come back. Only three lines change.

python examples/kafka_migration.py before localhost:9092 orders   # a failure stops the loop
python examples/kafka_migration.py after localhost:9092 orders    # a failure comes back in 200 ms
"""

from __future__ import annotations

import sys
import threading

from confluent_kafka import Consumer as PlainConsumer

from retry_topic import Consumer, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.policy import Fixed

POLICY = RetryPolicy(delay=Fixed(base_ms=200))
COUNT = 5  # orders to ship before this example ends
failed: set[bytes] = set()
shipped = threading.Semaphore(0)


def ship(value: bytes) -> None:
    """Ship one order; the first attempt of each order fails. Both `before` and `after` call this function."""
    if value not in failed:
        failed.add(value)
        raise ConnectionError(f"the carrier does not answer for {value.decode()}")
    sys.stdout.write(f"shipped: {value.decode()}\n")  # in one call; `print` makes two
    shipped.release()


def before(servers: str, topic: str) -> None:
    consumer = PlainConsumer(
        {"bootstrap.servers": servers, "group.id": "shipping-plain", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    while True:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            ship(record.value())  # an error ends the loop; if you catch it, the order is lost


def after(servers: str, topic: str) -> None:
    def shipping(message: Message) -> None:
        ship(message.value)

    connection = connect("embedded:.wheel-sched", broker=KafkaBroker(servers))  # 1: where failures wait
    service = RetryService(connection, "shipping", POLICY)  # 2: or `wheel-sched serve shipping`
    consumer = Consumer(connection, topic, shipping, group="shipping")  # 3: instead of the loop
    with connection, service, consumer:
        for _ in range(COUNT):
            shipped.acquire()


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]](*sys.argv[2:])
