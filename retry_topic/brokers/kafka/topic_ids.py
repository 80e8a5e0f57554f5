"""TopicIds: tells whether a member's topics are still the same ones whose partitions were assigned to it.

A topic may be deleted and recreated while a member reads it. The client does not say when it goes on with the other
log: it would skip as many records as it had read of the old log, or wait behind the end of the new one. So ids are read
when partitions come, again after records were read and before any is handed out, and now and then while none comes.
Offsets are committed with the id in the text beside them, behind the offset tracker's part. So nobody takes the offsets
of a deleted topic for those of its successor, however late they are committed.

To ask costs one answer's time, beside the commit that is due then anyway. Topics without ids (clusters before Kafka
2.8) are known by their names. Call everything except `ask` and `same` under the member's lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.topology import Topology
from wheel_sched.errors import BrokerError

_LOOK_S = 1.0  # how often to ask while no record comes: the other log may be as long as what was read of the old one
_MARK = " id:"  # between the offset tracker's text and the id; an earlier release reads the first and ignores the other

Asked = Mapping[str, Any]


class TopicIds:
    """See the module.

    Args:
        topology: reads ids.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ids: dict[str, str] = {}
        self._asked: Asked | None = None  # the request that is under way
        self._look_s = 0.0

    def of(self, topic: str) -> str:
        """The id that a topic had when its partitions came; its name if it has no id."""
        return self._ids.get(topic, topic)

    def look_up(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of the topics now; changes nothing here.

        Raises:
            BrokerError: the cluster does not answer.
        """
        return {topic: self._topology.topic_id(topic) for topic in {*topics}}

    def changed(self, found: Mapping[str, str], held: Iterable[str]) -> bool:
        """Whether, by the ids in `found`, one of the `held` topics was recreated."""
        return any(found.get(topic, self.of(topic)) != self.of(topic) for topic in held)

    def take(self, found: Mapping[str, str]) -> None:
        """Partitions of these topics come to the member."""
        self._ids.update(found)

    def ask(self, topics: Iterable[str]) -> Asked:
        """Ask for the ids of topics without waiting for the answers."""
        asked = {topic: self._topology.ask_id(topic) for topic in {*topics}}
        return {topic: answer for topic, answer in asked.items() if answer is not None}

    def same(self, asked: Asked) -> bool:
        """Whether the ids are those of when the partitions came; waits for the answers.

        Raises:
            BrokerError: the cluster does not answer, or a topic is deleted.
        """
        return all(self._topology.id_told(topic, answer) == self.of(topic) for topic, answer in asked.items())

    def look(self, held: Iterable[str]) -> bool:
        """Whether a topic turned out to be recreated. Call it often; it does not wait."""
        if self._asked is None:
            if time.monotonic() >= self._look_s:
                self._look_s = time.monotonic() + _LOOK_S
                self._asked = self.ask(held) or None
            return False
        if not all(answer.done() for answer in self._asked.values()):
            return False
        asked, self._asked = self._asked, None
        topics = {*held}
        try:
            return not self.same({topic: answer for topic, answer in asked.items() if topic in topics})
        except BrokerError:  # the topic is deleted, or nobody answers: ask again later
            return False

    def begin(self) -> None:
        """The member has left the group: forget the request under way."""
        self._asked = None

    def marked(self, offsets: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Offsets to commit, with the ids of their topics beside them."""
        return [
            TopicPartition(place.topic, place.partition, place.offset, _with_id(place, self.of(place.topic)))
            for place in offsets
        ]

    def own(self, found: Iterable[TopicPartition]) -> dict[tuple[str, int], tuple[int, str]]:
        """The committed offsets that belong to these very topics, with the texts beside them.

        Earlier releases committed no id; their offsets count.
        """
        own = {}
        for place in found:
            text, _, topic_id = (place.metadata or "").partition(_MARK)
            if topic_id in ("", self.of(place.topic)):
                own[place.topic, place.partition] = place.offset, text
        return own


def _with_id(place: TopicPartition, topic_id: str) -> str:
    text = place.metadata or ""
    return text if topic_id == place.topic else f"{text}{_MARK}{topic_id}"
