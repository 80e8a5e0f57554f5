"""Whether a member's topics are still those whose partitions it was given.

A topic may be deleted and made anew under a running member. The client does not say when it goes on with another log of
the name: it would skip as many records as it had read of the one before, or wait behind the new one's end. So ids are
looked up when partitions come, asked for again after records were read and before any is handed out, and now and then
while none comes. Offsets are committed with the id in the text beside them, behind what a ledger says there, so that
those of a topic that is gone are not taken for its successor's, whoever commits them late.

Asking costs an answer's time beside the commit that is due then anyway. Topics without ids (clusters before Kafka 2.8)
are taken for what their name says. Under the member's lock, but for `ask` and `same`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.topology import Topology
from wheel_sched.errors import BrokerError

_LOOK_S = 1.0  # how often to ask while no record comes: another log may be as long as what was read of the one before
_MARK = " id:"  # between a ledger's text and the id; an earlier release reads the one and passes over the other

Asked = Mapping[str, Any]


class TopicIds:
    """See the module.

    Args:
        topology: tells ids.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ids: dict[str, str] = {}
        self._asked: Asked | None = None  # of the look that is under way
        self._look_s = 0.0

    def of(self, topic: str) -> str:
        """The id of a topic when its partitions came; its name where it has none."""
        return self._ids.get(topic, topic)

    def look_up(self, topics: Iterable[str]) -> dict[str, str]:
        """What they are now; nothing is changed by it.

        Raises:
            BrokerError: the cluster does not answer.
        """
        return {topic: self._topology.topic_id(topic) for topic in {*topics}}

    def changed(self, found: Mapping[str, str], held: Iterable[str]) -> bool:
        """Whether one of the topics of which partitions are held is another one by what was found."""
        return any(found.get(topic, self.of(topic)) != self.of(topic) for topic in held)

    def take(self, found: Mapping[str, str]) -> None:
        """Partitions of these come to the member."""
        self._ids.update(found)

    def ask(self, topics: Iterable[str]) -> Asked:
        """Ask for the ids of topics, without waiting."""
        asked = {topic: self._topology.ask_id(topic) for topic in {*topics}}
        return {topic: answer for topic, answer in asked.items() if answer is not None}

    def same(self, asked: Asked) -> bool:
        """Whether they are what they were when their partitions came; waits for the answers.

        Raises:
            BrokerError: the cluster does not answer, or one is deleted.
        """
        return all(self._topology.id_told(topic, answer) == self.of(topic) for topic, answer in asked.items())

    def look(self, held: Iterable[str]) -> bool:
        """Whether it was found that a topic is another one; to be called often, does not wait."""
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
        except BrokerError:  # it is deleted, or nobody answers: it is asked again
            return False

    def begin(self) -> None:
        """The member has left: what is asked is about topics that it has no more."""
        self._asked = None

    def marked(self, offsets: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Offsets to commit, with the ids of their topics."""
        return [
            TopicPartition(place.topic, place.partition, place.offset, _with_id(place, self.of(place.topic)))
            for place in offsets
        ]

    def own(self, found: Iterable[TopicPartition]) -> dict[tuple[str, int], tuple[int, str]]:
        """Of what is committed the offsets of these very topics, with the texts beside them.

        Releases before this one committed no id.
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
