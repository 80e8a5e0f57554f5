"""Consumers are killed while they write retry records. Still the retry topic has one record for each failure."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import read
from retry_topic.message.topic_names import retry_topic_of

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT = 300

# A consumer whose handler always fails. It kills itself just before or just after it commits its third transaction,
# which has the retry records and the offsets.
CONSUMER = """
import os, signal, sys, time
from confluent_kafka import Producer
from retry_topic import Consumer, ConsumerConfig, connect
from retry_topic.brokers.kafka import KafkaBroker, transactions

servers, name, moment = sys.argv[1:]
done = []

class Dying(Producer):
    def commit_transaction(self, *args):
        done.append(None)
        if len(done) == 3 and moment == "before":
            print("died", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit_transaction(*args)
        if len(done) == 3:
            print("died", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

def fail(message):
    raise OSError("not yet")

transactions.Producer = Dying
hasty = {"session.timeout.ms": 2000, "socket.timeout.ms": 3000}  # its open transaction holds up readers for twice that
broker = KafkaBroker({"bootstrap.servers": servers, **hasty}, delivery_timeout_ms=3_000)
connection = connect("memory:", broker=broker, namespace=name)
Consumer(connection, name, fail, group=name, config=ConsumerConfig(concurrency=20)).start()
time.sleep(120)  # until it has killed itself
"""


def test_a_consumer_that_dies_over_its_retry_record_doubles_none(
    kafka: TemporaryKafka, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """One consumer is killed before it commits its records, another just after the commit. A third consumer handles the
    other messages."""
    broker = KafkaBroker({"bootstrap.servers": kafka.bootstrap, "session.timeout.ms": 2_000}, partitions=2)
    broker.create_topic(name)
    assert not any(broker.publish([Message(name, b"%d" % n, partition=n % 2) for n in range(COUNT)]))
    for moment in ("before", "after"):
        arguments = [sys.executable, "-c", CONSUMER, kafka.bootstrap, name, moment]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == b"died\n"
                assert child.wait(30) == -signal.SIGKILL
            finally:
                child.kill()

    def fail(message: Message) -> None:
        raise OSError("not yet")

    with connect("memory:", broker=broker, namespace=name) as connection:
        config = ConsumerConfig(concurrency=20)
        with Consumer(connection, name, fail, group=name, config=config):
            until(
                lambda: len(committed(retry_topic_of(name))) >= COUNT,
                lambda: len(committed(retry_topic_of(name))),
                pause_s=0.2,
            )
        records = committed(retry_topic_of(name))
    assert Counter(record.value for record in records) == Counter(b"%d" % n for n in range(COUNT))
    assert {read(record.headers).attempt for record in records} == {1}
    assert len({read(record.headers).id for record in records}) == COUNT
