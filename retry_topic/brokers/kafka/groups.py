"""Groups: reads and writes the committed offsets of consumer groups and their metadata.

It uses a separate consumer client that has the group's name and does not join the group. An admin client cannot do
this: while a coordinator loads its groups, its answer (ListConsumerGroupOffsets) crashes librdkafka 2.16. A consumer
waits instead. A member of the group cannot do it either: the broker may refuse its request during a rebalance.

Cost: one connection for each call. Threads: any thread may call any method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retry_topic.brokers.kafka.faults import DeadlinePassed, broker_error, call_with_deadline, error_of, said_meanwhile

T = TypeVar("T")

_CALL_S = 20.0
_AT_ONCE = 5_000  # partitions
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


class Groups:
    """Reads and writes the committed offsets of the groups of a cluster.

    Args:
        settings: librdkafka's settings for the cluster.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    def places(self, group: str, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The committed offsets of a group for some partitions. No open transaction can still change them.

        Raises:
            BrokerError: the cluster refused or does not answer.
        """
        asked = [list(places[start : start + _AT_ONCE]) for start in range(0, len(places), _AT_ONCE)]

        def read(client: Any) -> list[TopicPartition]:
            return [place for part in asked for place in client.committed(part, timeout=_CALL_S)]

        found = self._do(group, "read", read, max(1, len(asked))) if asked else []
        for place in found:
            if place.error is not None and place.error.code() not in _GONE:
                raise broker_error(place.error, f"the offsets of group {group!r} could not be read")
        return [place for place in found if place.error is None and place.offset >= 0]

    def committed(self, group: str, places: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
        """The committed offsets of a group for some partitions, by topic and partition number."""
        return {(place.topic, place.partition): place.offset for place in self.places(group, places)}

    def assigned(self, group: str, admin: Any) -> set[str]:
        """The topics whose partitions the members of a group have now.

        Args:
            group: the name of the group.
            admin: an admin client of the cluster.

        Raises:
            BrokerError: the cluster refused or does not answer.
        """
        try:
            (asked,) = admin.describe_consumer_groups([group], request_timeout=_CALL_S).values()
            members = asked.result(_CALL_S).members
        except (KafkaException, TimeoutError) as error:
            raise broker_error(error, f"the members of group {group!r} could not be read") from error
        return {place.topic for member in members for place in member.assignment.topic_partitions}

    def put(self, group: str, places: Sequence[TopicPartition]) -> None:
        """Commit offsets for a group that has no members.

        Raises:
            BrokerError: the group has members, or the cluster does not answer.
        """
        self._do(group, "committed", lambda client: client.commit(offsets=list(places), asynchronous=False))

    def _do(self, group: str, what: str, call: Callable[[Any], T], calls: int = 1) -> T:
        own = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}

        def do() -> T:
            client: Any = Consumer({**self._settings, **own})
            try:
                return call(client)
            except KafkaException as error:
                raise KafkaException(error_of(said_meanwhile(client, error))) from error
            finally:
                client.close()

        try:
            return call_with_deadline(do, calls * _CALL_S, what)
        except (KafkaException, DeadlinePassed) as error:
            raise broker_error(error, f"the offsets of group {group!r} could not be {what}", writes=True) from error
