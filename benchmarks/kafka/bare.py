"""A bare loop over one transactional producer, as its manual shows it: what redelivery is compared with.

The same records in transactions of the same size, each with an offset committed in it. No store, no claims, no answers
for single messages; nobody could take over from it.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.kafka.reader import Reader
from benchmarks.kafka.site import Site
from retry_topic.brokers.kafka import KafkaBroker
from wheel_sched.store import MAX_BATCH


def bare_transactions(where: Site, count: int) -> float:
    """Messages a second from the first transaction to the reader of committed records."""
    run = uuid4().hex[:8]
    topic, offsets = f"bare-{run}", f"bare-{run}.offsets"
    broker = KafkaBroker(where.servers, partitions=2)
    for name in (topic, offsets):
        broker.create_topic(name)
    broker.close()
    servers = {"bootstrap.servers": where.servers}
    member: Any = Consumer({**servers, "group.id": offsets})
    producer: Any = Producer({**servers, "transactional.id": run, "linger.ms": 1, "compression.type": "lz4"})
    producer.init_transactions(30)
    with Reader(where.servers, topic, 2) as reader:
        began_s = time.time()
        for start in range(0, count, MAX_BATCH):
            producer.begin_transaction()
            for number in range(start, min(start + MAX_BATCH, count)):
                producer.produce(topic, b"%d" % number, b"%d" % number)
                producer.poll(0)
            position = TopicPartition(offsets, 0, start)
            producer.send_offsets_to_transaction([position], member.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
        reader.wait(count)
        last_ms = max(at_ms for _, at_ms in reader.came)
    member.close()
    return count * 1000 / (last_ms - began_s * 1000)
