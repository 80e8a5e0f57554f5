"""Sends the claims of a delay store in transactions that carry the claim's number.

Two transactional producers per shard take turns, their ids made of namespace and shard: a new pair fences those before
it. The number
is committed as the offset of the partition that has the shard's number, in a topic that stays empty, by a group that
nobody joins; with the messages or not at all. So whoever takes a shard over learns which of the open claims went out.

A committed offset without a group expires (`offsets.retention.minutes`, 7 days): the owner commits it again each day.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from retry_topic.brokers.kafka.attendant import LeftBehind, attended
from retry_topic.brokers.kafka.faults import broker_error, said_meanwhile
from retry_topic.brokers.protocol import InDoubt, PublishFailure
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from wheel_sched.errors import BrokerUnavailable

if TYPE_CHECKING:
    from retry_topic.brokers.kafka.broker import KafkaBroker
    from retry_topic.brokers.kafka.transactions import Transactions

READ_S = 10.0
AGAIN_S = 86_400.0


def claims_topic(namespace: str) -> str:
    """The topic whose partitions stand for the shards of a namespace; also the group that commits there."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', namespace)}.claims"


class KafkaSender:
    """See `ClaimSender`. One thread per shard at a time.

    Args:
        broker: whose cluster.
        namespace: of the store.
        shards: of the store.
    """

    def __init__(self, broker: KafkaBroker, namespace: str, shards: int) -> None:
        self._broker = broker
        self._shards = shards
        self.topic = claims_topic(namespace)
        self._senders: dict[int, Transactions] = {}
        self._committed_s: dict[int, float] = {}
        # never subscribes: it reads offsets, and lends its name to the transactions that commit them
        settings = {**broker.settings, "group.id": self.topic, "isolation.level": "read_committed"}
        self._reader: Any = Consumer({**settings, "enable.auto.commit": False})

    def take_over(self, shard: int) -> int | None:
        """See `ClaimSender`."""
        self._broker.topology.create([self.topic], partitions=self._shards, settings={"cleanup.policy": "compact"})
        sender = self._senders.get(shard)
        if sender is None:
            name = f"{self.topic}-{shard}"
            sender = self._senders[shard] = self._broker.transaction_producer(name, producers=2)
        sender.revive()
        place = TopicPartition(self.topic, shard)
        try:
            (found,) = attended(lambda: self._reader.committed([place], timeout=READ_S), READ_S, "committed")
        except LeftBehind as error:
            raise BrokerUnavailable(f"{error}: the claims that went out are not known") from error
        except KafkaException as error:
            why = said_meanwhile(self._reader, error)
            raise broker_error(why, "the number of the last claim could not be read") from error
        if found.error is not None:
            raise broker_error(found.error, "the number of the last claim could not be read")
        return int(found.offset) if found.offset >= 0 else None

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """See `ClaimSender`."""
        sender, messages = self._senders[shard], self._broker.placing.placed(map(return_to_origin, messages))
        if not sender.ready:  # a new producer would fence whoever owns the shard by now: that is for the owner to do
            raise InDoubt(f"the producer of shard {shard} was given up: who owns the shard is to be asked first")
        offsets = [TopicPartition(self.topic, shard, number)]
        answers = sender.send(messages, offsets, self._reader.consumer_group_metadata())
        self._committed_s[shard] = time.monotonic()
        return answers

    def stale(self, shard: int) -> bool:
        """See `ClaimSender`."""
        return time.monotonic() - self._committed_s.get(shard, time.monotonic()) > AGAIN_S

    def close(self) -> None:
        """See `ClaimSender`."""
        for sender in self._senders.values():
            sender.close()
        self._reader.close()
