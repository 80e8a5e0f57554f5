"""The topics of the cluster: `Topology` lists and creates them, `TopicIds` detects that one was recreated."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import admin as _typed_admin

from retry_topic.brokers.kafka.faults import UNANSWERED, broker_error, error_of
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError

TIMEOUT_S = 15.0
_AGAIN_S = 1.0
_LOOK_S = 1.0  # how often to ask while no record comes: the log of a recreated topic may end where the reader stands
_MARK = " id:"  # stands between the offset tracker's text and the topic's id; earlier releases ignore the id
_TRUST = "ssl.ca.location"
_VISIBLE_S = 10.0  # how long a new topic may take until every request sees it
_admin: Any = _typed_admin  # the stubs of this module lack some of its names
Asked = Mapping[str, Any]
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def topic_problem(topic: str) -> str | None:
    """Why Kafka cannot have a topic with this name; None if it can."""
    if not topic or len(topic) > 249 or topic in (".", "..") or not _NAME.issuperset(topic):
        return f"expected a Kafka topic of 1 to 249 letters, digits, dots, underscores or dashes, got: {topic!r}"
    return None


def check_topic(topic: str) -> None:
    """Raise `ConfigError` if Kafka cannot have a topic with this name."""
    if problem := topic_problem(topic):
        raise ConfigError(problem)


def _plainly(trouble: str) -> str:
    """The text of an error. For a failed certificate, adds the advice to set `ssl.ca.location` if the text lacks it."""
    if "certificate verify failed" not in trouble or _TRUST in trouble:
        return trouble
    advice = f"{_TRUST} must name a certificate authority's file"
    return f"{trouble}: the broker's certificate could not be verified; {advice}"


def _listened_to(settings: Mapping[str, Any], trouble: deque[str]) -> dict[str, Any]:
    """The settings with an error callback that adds errors to `trouble` and then calls the user's own callback."""
    theirs = settings.get("error_cb")

    def on_error(error: Any) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # this error only follows another error
            trouble.append(_plainly(error.str()))
        if theirs is not None:
            theirs(error)

    return {**settings, "error_cb": on_error}


class Topology:
    """Lists the cluster's topics with their partitions, ids and settings, and creates topics. Any thread may use it.

    A look-up never creates a topic: some clusters create each topic that a client names, so this class reads the list
    of all topics instead. A mistyped topic is then an error and not a new topic. This class remembers known topics. It
    looks an unknown topic up again, at most once a second. It asks for ids each time, because a topic may be recreated.

    Args:
        settings: librdkafka's settings of the client.
        partitions: the number of partitions of created topics.
        replication: the number of copies of created topics, -1 for the cluster's default.
        settings_of_topics: the settings of created topics.
    """

    def __init__(
        self, settings: Mapping[str, Any], partitions: int, replication: int, settings_of_topics: Mapping[str, str]
    ) -> None:
        self._trouble: deque[str] = deque(maxlen=1)
        self.admin: Any = _admin.AdminClient(_listened_to(settings, self._trouble))
        self._partitions = partitions
        self._replication = replication
        self._settings_of_topics = dict(settings_of_topics)
        self._known: dict[str, int] = {}
        self._controlled = True  # False for librdkafka's mock cluster: no controller creates topics there
        self._looked_s = -_AGAIN_S
        self._lock = threading.Lock()

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if the topic is absent.

        Raises:
            BrokerUnavailable: the cluster does not answer, and the number is not known from before.
        """
        found = self._known.get(topic)
        if found is not None:
            return found
        with self._lock:
            if topic not in self._known and time.monotonic() - self._looked_s >= _AGAIN_S:
                self._look()
            return self._known.get(topic, 0)

    def counted(self, topic: str) -> int:
        """The number of partitions of a topic, from a new request to the cluster.

        Raises:
            BrokerUnavailable: the cluster does not answer. The known number is kept.
        """
        with self._lock:
            self._look()
            return self._known.get(topic, 0)

    def settings_of(self, topic: str) -> dict[str, str] | None:
        """The settings of a topic; None if this client may not read them or the cluster does not give them.

        Raises:
            BrokerUnavailable: the cluster does not answer.
        """
        if not self._controlled:
            return {}  # librdkafka's mock cluster keeps all timestamps
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, topic)
        try:
            (future,) = self.admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
            found = future.result(TIMEOUT_S)
        except KafkaException as error:
            if error_of(error).code() in UNANSWERED:
                raise broker_error(error, f"the settings of topic {topic!r} could not be read") from error
            return None
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def forget(self, topic: str) -> None:
        """Forget what is known about the topic, which may have been deleted. Its next use looks it up again."""
        with self._lock:
            self._known.pop(topic, None)
            self._looked_s = -_AGAIN_S

    def create(
        self, topics: Iterable[str], partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> list[str]:
        """Create the absent topics. Returns the created ones.

        `partitions` replaces the number that this object has, and `settings` are added to this object's settings.

        Raises:
            ConfigError: a name is impossible.
            BrokerError: the cluster refused or does not answer.
        """
        names = list(dict.fromkeys(topics))
        for name in names:
            check_topic(name)
        with self._lock:
            self._look()
            absent = [name for name in names if name not in self._known]
        if not absent:
            return []
        if not self._controlled:
            for name in absent:  # librdkafka's mock cluster creates each topic that is named
                self.admin.list_topics(name, timeout=TIMEOUT_S)
            self._until_visible(absent)
            return absent
        wanted = [
            _admin.NewTopic(
                name,
                partitions or self._partitions,
                self._replication,
                config=self._settings_of_topics | dict(settings or {}),
            )
            for name in absent
        ]
        created = []
        for name, future in self.admin.create_topics(wanted, operation_timeout=TIMEOUT_S).items():
            try:
                future.result(TIMEOUT_S)
                created.append(name)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise broker_error(error, f"topic {name!r} could not be created", writes=True) from error
        self._until_visible(absent)
        return created

    def places(self) -> list[TopicPartition]:
        """All partitions of all topics except the cluster's own topics."""
        with self._lock:
            self._look()
            known = {topic: count for topic, count in self._known.items() if not topic.startswith("__")}
        return [TopicPartition(topic, number) for topic, count in sorted(known.items()) for number in range(count)]

    def lengths(self) -> dict[str, int]:
        """All topics except the cluster's own, with the number of offsets of each."""
        places = self.places()
        last, first = self.ends(places), self.ends(places, earliest=True)
        spans = dict.fromkeys([place.topic for place in places], 0)
        for place in places:
            where = place.topic, place.partition
            spans[place.topic] += last.get(where, 0) - first.get(where, 0)
        return spans

    def ends(
        self, places: list[TopicPartition], *, earliest: bool = False, committed: bool = False
    ) -> dict[tuple[str, int], int]:
        """For each partition the offset after its last record. With `earliest`: the offset of its first record.

        With `committed`: the offset at which the first open transaction begins, if there is one. A reader of committed
        records gets no further until that transaction ends.
        """
        if not places:
            return {}
        spec = _admin.OffsetSpec.earliest() if earliest else _admin.OffsetSpec.latest()
        found = {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = self.admin.list_offsets(dict.fromkeys(places, spec), isolation_level=level, request_timeout=TIMEOUT_S)
        for place, future in asked.items():
            try:
                found[place.topic, place.partition] = future.result(TIMEOUT_S).offset
            except KafkaException as error:
                raise broker_error(error, "the ends of topics could not be read") from error
        return found

    def closed(self, topics: Set[str]) -> set[str]:
        """The topics that this client may not write to; none if the cluster does not report it."""
        found = set()
        asked = self.admin.describe_topics(
            TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=TIMEOUT_S
        )
        for topic, future in asked.items():
            try:
                rights = future.result(TIMEOUT_S).authorized_operations
            except KafkaException as error:
                if error_of(error).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found.add(topic)
                continue
            if rights and _admin.AclOperation.WRITE not in rights:
                found.add(topic)
        return found

    def topic_id(self, topic: str) -> str:
        """The id of a topic; a recreated topic has another id. If the cluster has no ids: the topic's name.

        Raises:
            BrokerError: the cluster does not answer.
        """
        asked = self.ask_id(topic)
        return topic if asked is None else self.answered_id(topic, asked)

    def ask_id(self, topic: str) -> Any:
        """Ask for the id of a topic, without waiting. Returns the pending request; None if topics have no ids.

        The request is a future. Give it to `answered_id`, which waits for the answer.
        """
        if not self._controlled:
            return None
        return self.admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)[topic]

    def answered_id(self, topic: str, asked: Any) -> str:
        """Wait for `asked`, a request that `ask_id` returned. Returns and raises the same as `topic_id`."""
        try:
            found = str(asked.result(TIMEOUT_S).topic_id)
        except KafkaException as error:
            if error_of(error).code() not in (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION):
                raise broker_error(error, f"topic {topic!r} could not be described") from error
            found = topic
        except TimeoutError as error:
            raise BrokerUnavailable(f"topic {topic!r} could not be described in time; repeat it") from error
        return topic if set(found) <= {"A", "="} else found  # the id is all zero: the cluster has no ids

    def _look(self) -> None:
        try:
            cluster = self.admin.list_topics(timeout=TIMEOUT_S)
        except KafkaException as error:
            self.admin.poll(0)  # the failed call has no cause; only this poll reports it: certificate, login or host
            why = f" ({self._trouble[0]})" if self._trouble else ""
            raise broker_error(error, f"the list of topics could not be read{why}") from error
        self._trouble.clear()
        found, self._controlled = cluster.topics, not str(cluster.cluster_id).startswith("mockCluster")
        self._known = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        self._looked_s = time.monotonic()

    def _until_visible(self, topics: list[str]) -> None:
        until_s = time.monotonic() + _VISIBLE_S
        while True:
            with self._lock:
                self._look()
                if all(topic in self._known for topic in topics):
                    return
            if time.monotonic() >= until_s:
                missing = [topic for topic in topics if topic not in self._known]
                raise BrokerUnavailable(f"topics were created and are not visible yet: {missing}; repeat in a moment")
            time.sleep(0.02)


class TopicIds:
    """Detects that a topic of a group member was deleted and recreated.

    The client does not report when it starts to read the new log. It would skip as many records as it had read of the
    old log, or wait beyond the end of the new one. So this class reads the topics' ids when partitions are assigned. It
    reads them again each time after records were read and before they are handed out. It also does so about once a
    second, because a recreated topic may bring no records.
    Offsets are committed with the id in their metadata, after the offset tracker's text. So offsets of a deleted topic
    are never used for its successor, however late they are committed.

    The request for the ids runs at the same time as the commit of offsets, so it costs little time. Topics without ids
    (clusters before Kafka 2.8) are identified by their names. Call `ask`, `same` and
    `look_up` without the member's lock, because they wait for the cluster, `of` with or without it, and all other
    methods under it.

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
        """Whether a topic in `held` was recreated: its id in `found` differs from the id in this object."""
        return any(found.get(topic, self.of(topic)) != self.of(topic) for topic in held)

    def take(self, found: Mapping[str, str]) -> None:
        """Remember the ids of topics whose partitions are assigned to the member."""
        self._ids.update(found)

    def ask(self, topics: Iterable[str]) -> Asked:
        """Ask for the ids of topics without waiting for the answers. Returns the pending requests, for `same`."""
        asked = {topic: self._topology.ask_id(topic) for topic in {*topics}}
        return {topic: answer for topic, answer in asked.items() if answer is not None}

    def same(self, asked: Asked) -> bool:
        """Wait for the answers to `ask`. Returns whether no id has changed since the partitions were assigned.

        Raises:
            BrokerError: the cluster does not answer, or a topic is deleted.
        """
        return all(self._topology.answered_id(topic, answer) == self.of(topic) for topic, answer in asked.items())

    def look(self, held: Iterable[str]) -> bool:
        """Whether the cluster has answered that a topic of `held` was recreated. Asks each second. Never waits."""
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
        """Forget the pending request, because the member has left the group."""
        self._asked = None

    def marked(self, offsets: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offsets to commit, each with its topic's id added to the metadata."""
        return [
            TopicPartition(place.topic, place.partition, place.offset, _with_id(place, self.of(place.topic)))
            for place in offsets
        ]

    def own(self, found: Iterable[TopicPartition]) -> dict[tuple[str, int], tuple[int, str]]:
        """The committed offsets that belong to the present topics, not to deleted ones, each with the tracker's text.

        An offset without an id comes from an earlier release, and belongs to the present topic.
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
