"""A connection: a delay store and a broker that belong together, opened from one address.

connect("embedded:./data")        a Valkey server of this process with its data in that folder; topics are its streams
connect("redis://host:6379/0")    store and topics on one Redis or Valkey server
connect("memory:")                this process only, for tests and examples
connect(url, broker=my_broker)    the store at that address, topics on another broker
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from retry_topic.brokers.protocol import Broker, LogBroker, NamesBroker, OnceBroker
from retry_topic.message import Headers, Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import published, without_ours
from retry_topic.publish_arguments import (
    LaterArguments,
    checked_fair_key,
    checked_message,
    instant_ms,
    once_key,
    span_ms,
)
from retry_topic.release.fair import FairKeys
from wheel_sched.dispatcher import PushTarget
from wheel_sched.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    Rejected,
    StoreUnavailable,
    UnknownTopic,
)
from wheel_sched.redacting import redacted
from wheel_sched.store import DelayStore, Item, KnownIds, Outcome, open_store
from wheel_sched.store.once_per_key import LONGEST_WAIT_MS, route_of

if TYPE_CHECKING:
    from retry_topic.tracing import Tracing  # needs the extra `otel`

# how long a caller's id is remembered: by the topic (a message sent now), by the store (a later one, from its due time)
KNOWN_MS = 600_000
MADE_KNOWN_MS = 60_000  # the same for a random id, which the caller sees only in an error
EXPIRES_HEADER = "expires-at"  # epoch ms; a consumer dead-letters a message that it gets later


class Connection:
    """A store and a broker. Thread-safe.

    Args:
        store: an open delay store.
        broker: holds the topics.
        tracing: makes spans of publishing, of the retry service's intake and of replays. Defaults to None: no spans.

    Raises:
        ConfigError: a broker on Redis Streams has a durability level that does not include the store's level.
    """

    def __init__(self, store: DelayStore, broker: Broker, *, tracing: Tracing | None = None) -> None:
        _agreed(store, broker)
        self.tracing = tracing
        self.store = store
        self.broker = broker
        self.fair_keys = FairKeys(store)
        # whether an item's source log decides its shard; otherwise its id does
        self.by_source = isinstance(broker, LogBroker) and store.shards > 1
        self._once = broker if isinstance(broker, OnceBroker) else None
        self._topics: set[str] = set()

    def __repr__(self) -> str:
        return f"<Connection {self.store!r} {self.broker!r}>"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the broker, then the store (and the embedded server that it started). Idempotent."""
        self.broker.close()
        self.store.close()

    @property
    def hand_over(self) -> str:
        """How due messages can get from the store to their topic: by "one script" (exactly once), by "transactions"
        (effectively once), or by "claim, publish, settle" (at least once, with a stable id). `RetryService.hand_over`
        says how a service does it: limits or its settings can prevent "one script"."""
        if isinstance(self.broker, LogBroker) and self.broker.transactions:
            return "transactions"
        return "one script" if self.push_target() else "claim, publish, settle"

    def push_target(self) -> PushTarget | None:
        """The target to which the store's server can push; None if store and topics are on different servers."""
        identify = getattr(self.broker, "server_identity", None)
        if identify is None:
            return None
        mine = self.store.backend.identity()
        if mine is None or mine != identify():
            return None
        broker: Any = self.broker
        return PushTarget(prefix=broker.prefix, create=broker.create_topics)

    def publish(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        expires: float | timedelta | datetime | None = None,
        id: str | None = None,  # noqa: A002  # the field's own name
        collapse: str | None = None,
        debounce: str | None = None,
        max_wait: float | timedelta = LONGEST_WAIT_MS / 1000,
        fair_key: str | bytes | None = None,
    ) -> str:
        """Publish a message now or later. Returns its id, by which a message for later can be cancelled or rescheduled.

        With `collapse` or `debounce`, of several messages of a topic that wait under one key, only the first or the
        last is sent. A message in flight does not wait any more.

        Args:
            topic: an existing topic.
            value: payload.
            key: partitioning key. Defaults to None.
            headers: pairs of name and bytes. Retry headers are left out, because they belong to another message.
                Defaults to none.
            delay: seconds or a timedelta from now. Defaults to now.
            at: an aware datetime, instead of `delay`. A past time means now.
            expires: seconds, timedelta or aware datetime. A consumer that gets the message later dead-letters it.
                Defaults to never.
            id: makes the call repeatable: a repeat with the same id sends nothing more. For a message for later this
                holds until ten minutes after its due time, unless it is cancelled. For a message that is sent now it
                holds for ten minutes; but on Kafka each such call sends a record, all with this id. Consumers get the
                id as the header `retry-id`. Defaults to a random id.
            collapse: a key. While a message waits under it, this call stores nothing, and returns the id of that one.
                Defaults to None.
            debounce: a key. The message takes the place of the one that waits under it. Defaults to None.
            max_wait: with `debounce`, seconds or a timedelta: the message is due at most this long after the first one
                of its key was published, even if its `delay` is longer. 0: no bound. Defaults to one hour.
            fair_key: the fair key of a message for later, see `Fair`. Its retries have the key that the policy names.
                Defaults to that key for this attempt as well.

        Raises:
            UnknownTopic: the topic does not exist. Nothing was sent.
            Rejected: an argument is wrong, no topic can have that name, or a stored message for another topic has the
                id. Nothing was sent.
            BrokerError, StoreError: the message was not sent, or nobody knows whether it was.
        """
        if delay is not None and at is not None:
            raise Rejected("expected delay or at, got both; nothing was sent")
        later = LaterArguments(once_key(collapse, debounce, max_wait), checked_fair_key(fair_key))
        if later != LaterArguments() and delay is None and at is None:
            raise Rejected(
                "expected delay or at with collapse and debounce, and with fair_key, which are for messages for later; "
                "nothing was sent"
            )
        message = checked_message(Message(topic, value, key, tuple(headers)))
        message = message.to(topic, without_ours(message.headers))  # copied retry headers belong to another message
        message_id = uuid.uuid4().hex[:20] if id is None else id
        Item(message_id, None, b"").check()
        # the store's clock decides, not this machine's; rounded up, as every due time is
        now_ms = self.store.now_ms() + 1 if (delay, at, expires) != (None, None, None) else 0
        due_ms = now_ms + span_ms("delay", delay or 0) if at is None else instant_ms("at", at)
        if expires is not None:
            if isinstance(expires, datetime):
                expires_ms = instant_ms("expires", expires)
            else:
                expires_ms = now_ms + span_ms("expires", expires)
            if expires_ms <= due_ms:
                raise Rejected("the message would expire before it is due; nothing was sent")
            message = message.to(topic, (*message.headers, (EXPIRES_HEADER, b"%d" % expires_ms)))
        self.check_topic(topic)
        with self._sending(message, message_id) as message:
            return self._send(message, id, message_id, due_ms, now_ms, later)

    def _sending(self, message: Message, message_id: str) -> AbstractContextManager[Message]:
        """A `with` block around the sending of `message`: its span, if there is tracing."""
        return nullcontext(message) if self.tracing is None else self.tracing.sending(message, message_id)

    def _send(
        self,
        message: Message,
        given_id: str | None,
        message_id: str,
        due_ms: int,
        now_ms: int,
        later: LaterArguments,
    ) -> str:
        """Send or store a message. Returns its id, or the id of the message that is sent in its place."""
        topic = message.topic
        known_ms = MADE_KNOWN_MS if given_id is None else KNOWN_MS
        # a message that is stored for later under this id is not also sent now, or stored in another shard
        asks = given_id is not None and (due_ms <= now_ms or self.store.shards > 1)
        if asks and KnownIds(self.store).known(message_id, topic):
            return message_id
        if due_ms > now_ms:
            return self._publish_later(message, message_id, due_ms, now_ms, known_ms, later)
        self._publish_now(message, message_id, known_ms)
        return message_id

    def check_topic(self, topic: str) -> None:
        """Check that messages can be sent to `topic`, now or later.

        Raises:
            Rejected: no topic can have that name.
            UnknownTopic: the topic does not exist.
        """
        problem = self.broker.topic_problem(topic) if isinstance(self.broker, NamesBroker) else None
        if problem is not None:  # report it now, not when the message is due
            raise Rejected(f"{problem}; nothing was sent")
        if topic in self._topics or getattr(self.broker, "create_topics", False):
            return
        self._topics = set(self.broker.topics())
        if topic not in self._topics:
            close = get_close_matches(topic, self._topics, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UnknownTopic(
                f"there is no topic {topic!r}: nothing was sent; {hint}a consumer of it creates it, as "
                f"do connection.broker.create_topic({topic!r}) and, for every topic, connect(..., create_topics=True)"
            )

    def prepare_topic(self, topic: str) -> None:
        """Check the topic of a message that the store sends later. If publishing may create topics, create it now.

        The server's script that sends the message would create the stream, but would not add the topic to the list of
        topics.
        """
        self.check_topic(topic)
        if topic in self._topics:
            return
        try:
            self.broker.create_topic(topic)
        except (BrokerUnavailable, StoreUnavailable):
            # The message does not need it now. On the store's own server, storing fails or is in doubt as well, and
            # that error names the id. On another server, the dispatcher's publish creates the topic.
            return
        self._topics.add(topic)

    def _publish_later(
        self, message: Message, message_id: str, due_ms: int, now_ms: int, known_ms: int, later: LaterArguments
    ) -> str:
        """Store a message. Returns its id, or the id of the message that is sent in its place."""
        item = Item(message_id, due_ms, encode_body(published(message, message_id, now_ms)), message.topic)
        item.refs, item.route = self.fair_keys.place_of(message, later.fair_key)
        if later.once is not None:
            key, ref = later.once
            item.refs, item.route = (*item.refs, ref), item.route or route_of(message.topic, key)
        self.prepare_topic(message.topic)
        if known_ms == MADE_KNOWN_MS and due_ms > now_ms + 2 * MADE_KNOWN_MS:
            known_ms = 0  # only an error shows this id to the caller: a quick repeat finds the message waiting
        try:
            stored = KnownIds(self.store).schedule([item], known_ms) if known_ms else self.store.schedule([item])
        except StoreUnavailable as error:
            if not error.in_doubt:
                raise
            again = f"publish it again with id={message_id!r}, which sends nothing twice "
            again += f"until {known_ms // 60_000} min after its due time" if known_ms else "while it waits"
            raise type(error)(f"{error}; {again}", in_doubt=True) from error
        if stored.outcomes == [Outcome.SUPERSEDED]:
            return stored.others[0]
        there = self.store.get([message_id], route=item.route)[0] if stored.outcomes == [Outcome.DUPLICATE] else None
        if there is not None and there.topic != message.topic:
            raise Rejected(
                f"the id {message_id!r} is that of a message for {there.topic!r}, which is stored: nothing was sent; "
                "give it another id, or publish it after that one was sent"
            )
        return message_id

    def _publish_now(self, message: Message, message_id: str, known_ms: int) -> None:
        message = published(message, message_id)
        once = self._once
        if once is not None:
            failure = once.publish_once(message, message_id, known_ms)
        else:
            failure = self.broker.publish([message])[0]
        if failure is None:
            self._topics.add(message.topic)
            return
        if failure.transient and failure.in_doubt:
            again = f"publish it again with id={message_id!r}, "
            again += "which sends nothing twice within " if once else "which may be a second record with this id"
            again += f"{known_ms // 60_000} min" if once else ""
            raise BrokerUnavailable(f"{failure.reason}; the message may be sent: {again}", in_doubt=True)
        if failure.transient:
            raise BrokerUnavailable(f"{failure.reason}; the message was not sent")
        self._topics.discard(message.topic)  # it may have been deleted since the last check
        self.check_topic(message.topic)
        raise BrokerError(f"{failure.reason}; the message was not sent")


def _agreed(store: DelayStore, broker: Broker) -> None:
    """Check that the broker's durability level includes the store's level.

    Raises:
        ConfigError: the broker's level does not include the store's.
    """
    asked, kept = _level_of(store), getattr(broker, "durability", None)
    if asked is not None and kept is not None and not kept.keeps(asked):
        raise ConfigError(
            f"expected the broker to have the store's durability, {asked}, got: {kept}; give RedisStreamsBroker "
            f"{asked}, or the store a lower level; nothing was opened"
        )


def _level_of(store: DelayStore) -> Any:
    """The store's `Durability`; None for a store in memory."""
    return getattr(getattr(store.backend, "dialect", None), "level", None)


def connect(
    url: str = "memory:",
    *,
    broker: Broker | None = None,
    namespace: str = "wheel",
    shards: int = 1,
    durability: str = "everysec",
    replicas: int = 1,
    prefix: str = "",
    create_topics: bool = False,
    keep: int = 10_000,
    tracing: Tracing | None = None,
) -> Connection:
    """Open store and broker.

    Args:
        url: the store's address, see `wheel_sched.store.open_store`. Defaults to "memory:".
        broker: holds the topics. It has its own settings: `prefix`, `create_topics` and `keep` do not change them.
            Defaults to the store's own server (or memory).
        namespace: prefix of the store's keys. Defaults to "wheel".
        shards: the number of the store's shards, fixed at creation. Defaults to 1.
        durability: how durable a write of the store, or of topics on its server, must be before it is acknowledged. A
            given broker has its own level. Defaults to "everysec".
        replicas: how many replicas confirm under "replicated". Defaults to 1.
        prefix: the prefix of the topics' streams. Defaults to "".
        create_topics: whether publishing creates topics. Defaults to False.
        keep: about how many records of a topic stay after every group has settled them. Defaults to 10,000.
        tracing: see `Connection`. Defaults to None: no spans.

    Raises:
        ConfigError, StoreError: see `open_store` and `Connection`.
    """
    store = open_store(url, namespace=namespace, shards=shards, durability=durability, replicas=replicas)
    try:
        return Connection(store, broker or _own_broker(store, url, prefix, create_topics, keep), tracing=tracing)
    except BaseException:
        store.close()
        raise


def _own_broker(store: DelayStore, url: str, prefix: str, create_topics: bool, keep: int) -> Broker:
    if url == "memory:":
        from retry_topic.brokers.memory import MemoryBroker

        return MemoryBroker(create_topics=create_topics, maxlen=keep)
    from retry_topic.brokers.redis_streams import RedisStreamsBroker

    client = getattr(store.backend, "client", None)
    if client is None:
        raise ConfigError(f"the store at {redacted(url)!r} has no server for topics: give a broker")
    if store.backend.identity() is None and not store.backend.cluster:
        raise StoreUnavailable("the server does not report its run id: give a broker")
    level = _level_of(store)
    return RedisStreamsBroker(
        client,
        prefix=prefix,
        create_topics=create_topics,
        maxlen=keep,
        durability=level.level,
        replicas=level.replicas,
    )
