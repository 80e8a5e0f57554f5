"""KafkaSender: sends the claims of a delay store in transactions that carry the claim's number.

Each shard has two transactional producers, which take turns. Their ids contain the namespace and the shard, so a new
pair fences the previous pair. The transaction commits the claim's number as an offset, together with the messages or
not at all. This offset belongs to a topic that stays empty, to the partition with the shard's number, and to a group
that nobody joins. So a new owner of the shard reads there which of the open claims were sent.

The committed offset of a group without members expires (`offsets.retention.minutes`, 7 days). So the owner commits it
again each day.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from retry_topic.brokers.kafka.deadline_call import DeadlinePassed, call_with_deadline
from retry_topic.brokers.kafka.faults import broker_error, said_meanwhile
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.kafka.transactions import Transactions
from retry_topic.brokers.protocol import BrokerInDoubt, PublishFailure
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from wheel_sched.errors import BrokerUnavailable

READ_S = 10.0
AGAIN_S = 86_400.0


def claims_topic(namespace: str) -> str:
    """The topic whose partitions stand for the shards of a namespace. The group that commits there has the same
    name."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', namespace)}.claims"


class KafkaSender:
    """See `ClaimSender`. One thread per shard at a time.

    Args:
        settings: librdkafka's settings of the broker.
        topology: creates the topic for the claim numbers.
        producers: makes the transactional producers of an id.
        placed: gives each message a partition and a time that its topic accepts.
        namespace: the store's namespace.
        shards: the number of the store's shards.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topology: Topology,
        producers: Callable[[str], Transactions],
        placed: Callable[[Iterable[Message]], list[Message]],
        namespace: str,
        shards: int,
    ) -> None:
        self._topology = topology
        self._producers = producers
        self._placed = placed
        self._shards = shards
        self.topic = claims_topic(namespace)
        self._senders: dict[int, Transactions] = {}
        self._committed_s: dict[int, float] = {}
        # this client never subscribes: it reads offsets, and the committing transactions use its group metadata
        settings = {**settings, "group.id": self.topic, "isolation.level": "read_committed"}
        self._reader: Any = Consumer({**settings, "enable.auto.commit": False})

    def take_over(self, shard: int) -> int | None:
        """See `ClaimSender`."""
        self._topology.create([self.topic], partitions=self._shards, settings={"cleanup.policy": "compact"})
        sender = self._senders.get(shard)
        if sender is None:
            sender = self._senders[shard] = self._producers(f"{self.topic}-{shard}")
        sender.revive()
        place = TopicPartition(self.topic, shard)
        try:
            (found,) = call_with_deadline(lambda: self._reader.committed([place], timeout=READ_S), READ_S, "committed")
        except DeadlinePassed as error:
            raise BrokerUnavailable(f"{error}: the claims that went out are not known") from error
        except KafkaException as error:
            why = said_meanwhile(self._reader, error)
            raise broker_error(why, "the number of the last claim could not be read") from error
        if found.error is not None:
            raise broker_error(found.error, "the number of the last claim could not be read")
        return int(found.offset) if found.offset >= 0 else None

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """See `ClaimSender`."""
        sender, messages = self._senders[shard], self._placed(map(return_to_origin, messages))
        if not sender.ready:  # a new producer would fence the present owner of the shard
            raise BrokerInDoubt(f"the producer of shard {shard} was given up: who owns the shard is to be asked first")
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
