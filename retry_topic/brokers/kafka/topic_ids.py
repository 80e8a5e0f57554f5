"""TopicIds: detects that a topic of a group member was deleted and recreated.

The client does not report when it starts to read the new log. It would skip as many records as it had read of the old
log, or wait beyond the end of the new one. So this class reads the topics' ids when partitions are assigned. It reads
them again after records were read and before any is handed out, and about once a second while none comes. Offsets are
committed with the id, in the text beside them, after the offset tracker's part. So offsets of a deleted topic are never
used for its successor, however late they are committed.

The request runs at the same time as the commit, which is needed anyway. Topics without ids (clusters before Kafka 2.8)
are identified by their names. Call everything except `ask` and `same` under the member's lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.topology import Topology
from wheel_sched.errors import BrokerError

_LOOK_S = 1.0  # how often to ask while no record comes: a new log may be as long as the part read of the old one
_MARK = " id:"  # between the offset tracker's text and the id; an earlier release ignores the id

Asked = Mapping[str, Any]


class TopicIds:
    """See the module.

    Args:
        topology: reads ids.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ids: dict[str, str] = {}
        self._asked: Asked | None = None  # the pending request
        self._look_s = 0.0

    def of(self, topic: str) -> str:
        """The id that a topic had when its partitions were assigned; its name if it has no id."""
        return self._ids.get(topic, topic)

    def look_up(self, topics: Iterable[str]) -> dict[str, str]:
        """The present ids of the topics. Changes nothing in this object.

        Raises:
            BrokerError: the cluster does not answer.
        """
        return {topic: self._topology.topic_id(topic) for topic in {*topics}}

    def changed(self, found: Mapping[str, str], held: Iterable[str]) -> bool:
        """Whether, by the ids in `found`, one of the `held` topics was recreated."""
        return any(found.get(topic, self.of(topic)) != self.of(topic) for topic in held)

    def take(self, found: Mapping[str, str]) -> None:
        """Remember the ids of topics whose partitions are assigned to the member."""
        self._ids.update(found)

    def ask(self, topics: Iterable[str]) -> Asked:
        """Ask for the ids of topics without waiting for the answers."""
        asked = {topic: self._topology.ask_id(topic) for topic in {*topics}}
        return {topic: answer for topic, answer in asked.items() if answer is not None}

    def same(self, asked: Asked) -> bool:
        """Whether the ids have not changed since the partitions were assigned. Waits for the answers.

        Raises:
            BrokerError: the cluster does not answer, or a topic is deleted.
        """
        return all(self._topology.id_told(topic, answer) == self.of(topic) for topic, answer in asked.items())

    def look(self, held: Iterable[str]) -> bool:
        """Whether a topic is known to be recreated. Does not wait; call it often."""
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
        except BrokerError:  # the topic is deleted, or the cluster does not answer: ask again later
            return False

    def begin(self) -> None:
        """The member has left the group: forget the pending request."""
        self._asked = None

    def marked(self, offsets: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Offsets to commit, with the ids of their topics beside them."""
        return [
            TopicPartition(place.topic, place.partition, place.offset, _with_id(place, self.of(place.topic)))
            for place in offsets
        ]

    def own(self, found: Iterable[TopicPartition]) -> dict[tuple[str, int], tuple[int, str]]:
        """The committed offsets that belong to the present topics and not to deleted ones, with the texts beside them.

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
