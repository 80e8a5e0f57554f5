"""Offsets of groups that nobody joins: read and committed by a client that lends the group its name.

Not by the admin client: while a coordinator still loads its groups, librdkafka 2.16 dies of the answer to it
(ListConsumerGroupOffsets), where a consumer waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException

from retry_topic.brokers.kafka.attendant import LeftBehind, attended
from retry_topic.brokers.kafka.faults import broker_error

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from retry_topic.brokers.kafka import KafkaBroker

T = TypeVar("T")

_CALL_S = 20.0


class Groups:
    """Offsets of groups, with the texts beside them.

    Args:
        broker: of which cluster.
    """

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker

    def places(self, group: str, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where a group has committed, of some partitions; no transaction that concerns them is open any more.

        Raises:
            BrokerError: the cluster does not answer.
        """
        found = self._do(group, "read", lambda client: client.committed(list(places), timeout=_CALL_S))
        for place in found:
            if place.error is not None:
                raise broker_error(place.error, f"the offsets of group {group!r} could not be read")
        return [place for place in found if place.offset >= 0]

    def put(self, group: str, places: Sequence[TopicPartition]) -> None:
        """Commit offsets for a group that has no members.

        Raises:
            BrokerError: it has members, or the cluster does not answer.
        """
        self._do(group, "committed", lambda client: client.commit(offsets=list(places), asynchronous=False))

    def _do(self, group: str, what: str, call: Callable[[Any], T]) -> T:
        own = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
        client: Any = Consumer({**self._broker.settings, **own})
        try:
            return attended(lambda: call(client), _CALL_S, what)
        except (KafkaException, LeftBehind) as error:
            raise broker_error(error, f"the offsets of group {group!r} could not be {what}") from error
        finally:
            client.close()
