"""The conformance suite for brokers: tests of what every broker must do. Subclass it to test your own broker::

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def broker(self):
            broker = MyBroker(...)
            yield broker
            broker.close()

The fixture gives a broker that refuses absent topics. Each test uses its own topics, so that tests may share a server.
Set a class attribute, such as `idle_ms`, where your broker differs. If a broker's groups know several protocols, run
the whole suite for one of them and `GroupCases` alone for the others. Call `pytest.register_assert_rewrite` with this
module's name before you import it, so that failures show details. The suite needs `hypothesis`. It takes about 10 s and
mostly waits for `idle_ms`, because redelivery happens in real time.
"""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import time
from collections import Counter
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.brokers.protocol import Broker, BrokerConsumer, Delivery, OnceBroker, TrimBroker
from retry_topic.connection import Connection
from retry_topic.message import Headers, Message
from retry_topic.release.broker_publisher import BrokerPublisher
from wheel_sched.dispatcher import Dispatcher
from wheel_sched.store import open_store

PATIENCE_MS = 10_000  # how long a test waits for deliveries; long, because the machine may be busy

_names = st.one_of(st.text(max_size=12), st.sampled_from(["value", "key", "h:", "h:value", "h:h:key"]))
_headers = st.lists(st.tuples(_names, st.binary(max_size=40)), max_size=6).map(tuple)
_contents = st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=40), _headers)


class _Cases:
    """The attributes that a subclass may change for its broker, and `member`, which adds a member to a group."""

    idle_ms = 600
    """After this many ms without a `beat`, a delivery goes to another member. Long enough for a busy machine."""

    exact_forward = True
    """Whether `forward` publishes and settles in one step. Then a repeated `forward` publishes nothing."""

    huge_bytes = 4 * 1024 * 1024
    """The broker must accept a payload of this size."""

    keeps_place = False
    """Whether the broker has partitions and keeps the timestamps of messages."""

    examples = 60
    """How many sets of messages the test of contents tries. Fewer for brokers that create topics slowly."""

    busy = 30, 6, 0.0
    """Records of a busy topic, polls within which one of a quiet topic must come, seconds until both have arrived."""

    poll_tolerance_ms = 1_000
    """How much longer than its timeout a `poll` may take on a busy machine."""

    def member(self, broker: Broker, *topics: str, group: str = "group", idle_ms: int | None = None) -> BrokerConsumer:
        """Create one more member of `group`. The member reads `topics`."""
        return broker.consumer(topics, group, idle_ms=idle_ms or self.idle_ms)


class MessageCases(_Cases):
    """Cases of messages and topics. They do not depend on the group protocol."""

    def test_contents_survive_byte_for_byte(self, broker: Broker) -> None:
        """Messages are published and read back: values, keys and headers are the same, also with odd header names."""

        # An inner function, because Hypothesis counts a test that several classes inherit as one.
        @settings(deadline=None, max_examples=self.examples)
        @given(contents=st.lists(_contents, min_size=1, max_size=8))
        def round_trip(contents: list[tuple[bytes, bytes | None, Headers]]) -> None:
            topic = fresh_topic(broker)
            messages = [Message(topic, value, key, headers) for value, key, headers in contents]
            publish(broker, *messages)
            consumer = self.member(broker, topic)
            got = [delivery.message for delivery in receive(consumer, len(messages))]
            consumer.close()
            assert [message.to(topic) for message in got] == messages

        round_trip()

    def test_a_message_keeps_its_place_and_time(self, broker: Broker) -> None:
        """If the broker has partitions and timestamps, a message keeps its partition and timestamp. A message for an
        absent partition, or with a timestamp in the future, is published as well."""
        topic, at_ms = fresh_topic(broker), time.time_ns() // 1_000_000 - 60_000
        publish(
            broker,
            Message(topic, b"kept", partition=0, timestamp_ms=at_ms),
            Message(topic, b"odd", partition=1_000, timestamp_ms=at_ms + 3_600_000),
        )
        kept, odd = (delivery.message for delivery in receive(self.member(broker, topic), 2))
        assert (kept.value, odd.value) == (b"kept", b"odd")
        assert (kept.partition, kept.timestamp_ms, odd.partition, odd.timestamp_ms) == (None,) * 4
        if self.keeps_place:
            assert kept.source is not None
            assert (kept.source.partition, kept.source.timestamp_ms) == (0, at_ms)
            assert odd.source is not None
            assert at_ms < (odd.source.timestamp_ms or 0) < at_ms + 3_600_000

    def test_a_huge_message_goes_through(self, broker: Broker) -> None:
        """A payload of `huge_bytes` arrives whole."""
        topic = fresh_topic(broker)
        value = bytes(range(256)) * (self.huge_bytes // 256)
        publish(broker, Message(topic, value))
        assert receive(self.member(broker, topic), 1)[0].message.value == value

    def test_an_unknown_topic_fails_alone(self, broker: Broker) -> None:
        """One message of a batch is for an absent topic. It alone fails, permanently; all others are published."""
        topic, absent = fresh_topic(broker), absent_topic()
        answers = broker.publish([Message(topic, b"a"), Message(absent, b"b"), Message(topic, b"c")])
        assert [answer is None for answer in answers] == [True, False, True]
        failure = answers[1]
        assert failure is not None
        assert (failure.transient, failure.in_doubt, absent in failure.reason) == (False, False, True)
        assert values(receive(self.member(broker, topic), 2)) == [b"a", b"c"]
        assert absent not in broker.topics()

    def test_what_is_published_once_may_be_repeated(self, broker: Broker) -> None:
        """An `OnceBroker` publishes a repeated id once per topic and time window. A refused message does not count."""
        if not isinstance(broker, OnceBroker):
            return
        one, other = fresh_topic(broker), fresh_topic(broker)
        for topic, message_id in ((one, "i"), (one, "i"), (other, "i"), (one, "j")):
            assert broker.publish_once(Message(topic, b"x"), message_id, 60_000) is None
        assert (broker.topics()[one], broker.topics()[other]) == (2, 1)
        absent = Message(f"absent-{uuid4().hex}", b"x")
        failures = [broker.publish_once(absent, "i", 60_000) for _ in range(2)]
        assert [failure is not None and not failure.transient for failure in failures] == [True, True]
        for _ in range(2):
            assert broker.publish_once(Message(other, b"x"), "short", 1) is None
            time.sleep(0.02)  # the broker's clock measures the window
        assert broker.topics()[other] == 3

    def test_a_topic_is_trimmed_up_to_what_a_group_has_yet_to_settle(self, broker: Broker) -> None:
        """A `TrimBroker` trims a topic without groups to about `keep` records, and never drops unsettled records."""
        if not isinstance(broker, TrimBroker):
            return
        unread, read = fresh_topic(broker), fresh_topic(broker)
        self.member(broker, read)
        for topic in (unread, read):
            publish(broker, *(Message(topic, b"%d" % n) for n in range(500)))
        assert broker.trim(unread, 100) >= 300  # a server drops whole stream nodes only
        assert 100 <= broker.topics()[unread] <= 200
        assert (broker.trim(read, 100), broker.topics()[read]) == (0, 500)
        assert broker.trim(f"absent-{uuid4().hex}", 100) == 0

    def test_nothing_to_publish_is_fine(self, broker: Broker) -> None:
        """Publishing an empty batch returns an empty list."""
        assert broker.publish([]) == []

    def test_topics_are_listed_with_their_lengths(self, broker: Broker) -> None:
        """`topics` lists created topics, empty ones included. Creating a topic again keeps its records."""
        empty, full = fresh_topic(broker), fresh_topic(broker)
        publish(broker, Message(full, b"a"), Message(full, b"b"))
        broker.create_topic(full)
        listed = broker.topics()
        assert (listed[empty], listed[full]) == (0, 2)

    def test_poll_keeps_its_timeout(self, broker: Broker) -> None:
        """A poll that finds nothing waits about its timeout and never less. With a timeout of 0 it does not wait."""
        consumer = self.member(broker, fresh_topic(broker))
        consumer.poll(1, 0)  # connects
        for timeout_ms in (0, 300):
            start = time.monotonic()
            assert consumer.poll(1, timeout_ms) == []
            took_ms = (time.monotonic() - start) * 1000
            assert timeout_ms - 5 <= took_ms <= timeout_ms + self.poll_tolerance_ms

    def test_everything_can_be_closed_twice(self, broker: Broker) -> None:
        """Closing a consumer or the broker again does nothing."""
        consumer = self.member(broker, fresh_topic(broker))
        for opened in (consumer, consumer, broker, broker):
            opened.close()


class GroupCases(_Cases):
    """Cases of groups and deliveries. If a broker has several group protocols, each of them must pass these cases."""

    def test_a_topic_keeps_its_order(self, broker: Broker) -> None:
        """Messages of one topic arrive in the order in which they were published, across batches and polls."""
        topic = fresh_topic(broker)
        for start in (0, 40, 80):
            publish(broker, *(Message(topic, str(n).encode()) for n in range(start, start + 40)))
        consumer = self.member(broker, topic)
        got = receive(consumer, 120, limit=7)
        assert [int(delivery.message.value) for delivery in got] == list(range(120))
        assert {delivery.deliveries for delivery in got} == {1}

    def test_a_delivery_says_where_it_was_read(self, broker: Broker) -> None:
        """A delivered message has a source that names its topic and tells records of the topic apart."""
        topic = fresh_topic(broker)
        publish(broker, Message(topic, b"a"), Message(topic, b"b"))
        sources = [delivery.message.source for delivery in receive(self.member(broker, topic), 2)]
        assert [source.topic for source in sources if source is not None] == [topic, topic]
        assert len(set(sources)) == 2

    def test_groups_are_independent(self, broker: Broker) -> None:
        """Each group gets every message, even a group that joins after another group has settled the messages."""
        topic = fresh_topic(broker)
        publish(broker, Message(topic, b"a"), Message(topic, b"b"))
        for group in ("one", "two"):
            consumer = self.member(broker, topic, group=group)
            got = receive(consumer, 2)
            assert values(got) == [b"a", b"b"]
            consumer.ack(got)

    def test_members_of_a_group_share_the_work(self, broker: Broker) -> None:
        """Two members of one group read a topic. Each message reaches exactly one of them."""
        topic = fresh_topic(broker)
        members = [self.member(broker, topic, idle_ms=60_000) for _ in range(2)]
        publish(broker, *(Message(topic, str(n).encode()) for n in range(40)))
        got: list[Delivery] = []
        until = time.monotonic() + PATIENCE_MS / 1000
        while len(got) < 40 and time.monotonic() < until:
            for member in members:
                got += member.poll(5, 50)
        assert Counter(values(got)) == Counter(str(n).encode() for n in range(40))

    def test_a_member_reads_several_topics_and_keeps_to_the_limit(self, broker: Broker) -> None:
        """`limit` counts the records of all topics together. A busy topic does not starve the others."""
        busy, calm = fresh_topic(broker), fresh_topic(broker)
        records, polls, arrival_s = self.busy
        publish(broker, *(Message(busy, b"busy") for _ in range(records)), Message(calm, b"calm"))
        consumer = self.member(broker, busy, calm, idle_ms=60_000)
        first = [consumer.poll(1, PATIENCE_MS)]
        time.sleep(arrival_s)
        first += [consumer.poll(1, PATIENCE_MS) for _ in range(polls - 1)]
        assert [len(deliveries) for deliveries in first] == [1] * polls
        assert b"calm" in values([delivery for deliveries in first for delivery in deliveries])
        assert len(receive(consumer, records + 1 - polls)) == records + 1 - polls

    def test_the_unsettled_comes_back_to_another_member(self, broker: Broker) -> None:
        """A delivery that a member neither settles nor keeps alive goes to another member, with `deliveries` = 2."""
        topic = fresh_topic(broker)
        dead, alive = self.member(broker, topic), self.member(broker, topic)
        publish(broker, Message(topic, b"orphan", b"key", (("h", b"1"),)))
        lost = receive(dead, 1)
        assert alive.poll(1, self.idle_ms // 4) == []
        found = receive(alive, 1)
        assert found[0].message == lost[0].message
        assert (lost[0].deliveries, found[0].deliveries) == (1, 2)

    def test_a_closed_member_leaves_what_it_held(self, broker: Broker) -> None:
        """Closing a member settles nothing: its messages go to another member, after `idle_ms` at the latest."""
        topic = fresh_topic(broker)
        leaving, staying = self.member(broker, topic), self.member(broker, topic)
        publish(broker, Message(topic, b"a"), Message(topic, b"b"))
        receive(leaving, 2)
        leaving.close()
        assert sorted(values(receive(staying, 2))) == [b"a", b"b"]

    def test_beat_keeps_a_delivery(self, broker: Broker) -> None:
        """A member keeps a delivery as long as it calls `beat`. After the last call, another member gets it."""
        topic = fresh_topic(broker)
        busy, other = self.member(broker, topic), self.member(broker, topic)
        publish(broker, Message(topic, b"slow"))
        held = receive(busy, 1)
        until = time.monotonic() + 3 * self.idle_ms / 1000
        while time.monotonic() < until:
            busy.beat(held)
            assert other.poll(1, self.idle_ms // 10) == []
        busy.beat(held)
        assert receive(other, 1)[0].deliveries == 2

    def test_beat_never_takes_a_delivery_back(self, broker: Broker) -> None:
        """When another member has a delivery, a `beat` of the former holder neither takes it back nor renews it."""
        topic = fresh_topic(broker)
        former, present, next_one = (self.member(broker, topic) for _ in range(3))
        publish(broker, Message(topic, b"slow"))
        lost = receive(former, 1)
        receive(present, 1)
        found: list[Delivery] = []
        until = time.monotonic() + PATIENCE_MS / 1000
        while not found and time.monotonic() < until:
            former.beat(lost)
            found = next_one.poll(1, self.idle_ms // 10)
        assert [delivery.deliveries for delivery in found] == [3]

    def test_the_settled_does_not_come_back(self, broker: Broker) -> None:
        """After `ack`, once or repeated, no member of the group gets the message again."""
        topic = fresh_topic(broker)
        consumer, other = self.member(broker, topic), self.member(broker, topic)
        publish(broker, Message(topic, b"a"), Message(topic, b"b"))
        got = receive(consumer, 2)
        consumer.ack(got[:1])
        consumer.ack(got)
        consumer.ack(got)
        consumer.ack([])
        assert other.poll(2, 2 * self.idle_ms) == []
        assert consumer.poll(2, 0) == []

    def test_forward_publishes_and_settles(self, broker: Broker) -> None:
        """A member forwards two deliveries: both messages arrive on the new topic, and neither delivery comes back."""
        source, target = fresh_topic(broker), fresh_topic(broker)
        consumer = self.member(broker, source)
        publish(broker, Message(source, b"a", b"k", (("n", b"1"),)), Message(source, b"b"))
        got = receive(consumer, 2)
        moved = [delivery.message.to(target, (("n", b"2"),)) for delivery in got]
        assert consumer.forward(list(zip(got, moved, strict=True))) == [None, None]
        assert [delivery.message.to(target) for delivery in receive(self.member(broker, target), 2)] == moved
        assert consumer.poll(2, 2 * self.idle_ms) == []

    def test_a_repeated_forward_publishes_nothing(self, broker: Broker) -> None:
        """Forwarding a settled delivery again succeeds. With `exact_forward` the second call publishes nothing."""
        source, target = fresh_topic(broker), fresh_topic(broker)
        consumer, reader = self.member(broker, source), self.member(broker, target)
        publish(broker, Message(source, b"a"))
        pairs = [(delivery, delivery.message.to(target)) for delivery in receive(consumer, 1)]
        assert consumer.forward(pairs) == [None]
        assert consumer.forward(pairs) == [None]
        assert values(receive(reader, 1)) == [b"a"]
        assert len(reader.poll(2, 100)) <= (0 if self.exact_forward else 1)

    def test_a_failed_forward_leaves_its_delivery_unsettled(self, broker: Broker) -> None:
        """A delivery that is forwarded to an absent topic comes back. Another one of the same call is published."""
        source, target = fresh_topic(broker), fresh_topic(broker)
        consumer, reader = self.member(broker, source), self.member(broker, target)
        publish(broker, Message(source, b"to nowhere"), Message(source, b"fine"))
        nowhere, fine = receive(consumer, 2)
        pairs = [(nowhere, nowhere.message.to(absent_topic())), (fine, fine.message.to(target))]
        failure, done = consumer.forward(pairs)
        assert done is None
        assert failure is not None
        assert not failure.transient
        assert values(receive(reader, 1)) == [b"fine"]
        again = receive(consumer, 1)
        assert values(again) == [b"to nowhere"]
        assert again[0].deliveries == 2

    def test_a_message_published_for_later_comes_with_its_id(self, broker: Broker) -> None:
        """A dispatcher releases delayed messages. Each arrives with the id that its publisher gave or got back."""
        topic = fresh_topic(broker)
        consumer = self.member(broker, topic)
        with open_store("memory:") as store:
            connection, copied = Connection(store, broker), ("retry-attempt", b"7")
            connection.publish(topic, b"m", key=b"k", headers=(("a", b"1"), copied), delay=0.001, id="daily")
            made = connection.publish(topic, b"n", delay=0.001)
            dispatcher = Dispatcher(store, BrokerPublisher(broker))
            dispatcher.start()
            messages = [delivery.message for delivery in receive(consumer, 2)]
            dispatcher.stop()
        by_value = {message.value: message for message in messages}
        assert by_value[b"m"].header("retry-id") == b"daily"
        assert by_value[b"n"].header("retry-id") == made.encode()
        message = by_value[b"m"]
        assert (message.key, message.header("a"), message.header("retry-attempt")) == (b"k", b"1", None)

    def test_a_consumer_creates_its_topic(self, broker: Broker) -> None:
        """Joining on an absent topic creates it, and a message published afterwards arrives."""
        topic = absent_topic()
        consumer = self.member(broker, topic)
        publish(broker, Message(topic, b"a"))
        assert values(receive(consumer, 1)) == [b"a"]


class BrokerConformance(MessageCases, GroupCases):
    """The whole suite. Subclass it with a `broker` fixture, and let pytest collect the subclass."""


def absent_topic() -> str:
    """A topic name that nobody else uses."""
    return f"topic-{uuid4().hex[:12]}"


def fresh_topic(broker: Broker) -> str:
    """A new, empty topic."""
    topic = absent_topic()
    broker.create_topic(topic)
    return topic


def publish(broker: Broker, *messages: Message) -> None:
    """Publish messages. Fails if the broker refuses one of them."""
    assert broker.publish(messages) == [None] * len(messages)


def receive(consumer: BrokerConsumer, count: int, *, limit: int = 100) -> list[Delivery]:
    """Poll until `count` deliveries have come. Fails if they do not come in time."""
    got: list[Delivery] = []
    until = time.monotonic() + PATIENCE_MS / 1000
    while len(got) < count:
        assert time.monotonic() < until, f"{len(got)} of {count} deliveries within {PATIENCE_MS} ms"
        found = consumer.poll(min(limit, count - len(got)), 200)
        assert len(found) <= min(limit, count - len(got))
        got += found
    return got


def values(deliveries: list[Delivery]) -> list[bytes]:
    """The payloads of the deliveries, in the same order."""
    return [delivery.message.value for delivery in deliveries]
