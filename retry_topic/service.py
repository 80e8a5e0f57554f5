"""The retry service of a consumer group: an intake that stores failed messages, and a dispatcher that sends them again.

    group.retry ─► intake ─► delay store ─► dispatcher ─► group.redelivery (or the origin)
                        └──► dead letters and group.dead

Any number of services may run for one group, in any processes. They share the work through the broker's consumer group
and the store's leases. Call `start` and `stop` from any thread, but not from `seen`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from retry_topic.brokers.protocol import LogBroker, OriginalsBroker, create_topics
from retry_topic.connection import Connection
from retry_topic.consumer.config import settings_problems
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.intake.origins import origins_problems
from retry_topic.intake.taken import Taken
from retry_topic.intake.worker import IntakeWorker, Reading
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics, check_group
from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.policy.loading import FAIR_IN_DEFAULT
from retry_topic.release.broker_publisher import BrokerPublisher
from retry_topic.release.fair import share_topics
from retry_topic.release.flow import FlowPublisher, is_limited
from retry_topic.release.originals import OriginalsPublisher
from retry_topic.release.shard_ownership import ShardOwner
from retry_topic.release.transactions import OwnedShards, TransactionalPublisher, transactional_config
from wheel_sched.dispatcher import Dispatcher, DispatcherConfig, DispatcherStats, Publisher
from wheel_sched.errors import ConfigError, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import DISPATCHER_EVERY_MS, MemberAnnouncer

logger = logger_of("retry_topic.service")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of a `RetryService`.

    Args:
        redelivery: "group" sends due messages to the group's own redelivery topic. "origin" sends them to the topic on
            which they first failed, where every group sees them, except messages with an ordering key and, with
            `secrets`, those without a valid signature. Defaults to "group".
        origins: the topics that "origin" may send to. A record whose headers name another topic becomes a dead letter
            with the reason `unknown-origin`. Defaults to (): the topics that the group reads, as the broker reports.
        headers: "spring" writes Spring Kafka's headers beside ours, for consumers in Java. Defaults to "own".
        batch: the number of failed messages that the intake takes at a time. Defaults to 250.
        idle_ms: after this time another service takes over the records that a dead one had read; on Kafka after at
            least 6 s. Defaults to 30 s.
        secrets: the secrets for signed headers. The first one signs, any of them verifies. Defaults to none.
        dispatcher: see `DispatcherConfig`.
        history: about how many attempts the store keeps for reports, see `retry_topic.history`. Consumers need the same
            setting. Each attempt takes some 150 bytes. Defaults to 0: none.
        reference_above: only with Kafka: payloads of more bytes than this stay in the retry topic, and the store holds
            a reference. The topic must keep them as long as a message may wait, or may be replayed as a dead letter.
            Defaults to 0: the store holds all.
        group_topics: the group's topics, if they are not named after the group. Consumers need the same setting.
            Defaults to topics named after the group.
        announce_ms: how often the service announces itself in the store, for `wheel-sched ps` and `doctor`. 0: never.
            Defaults to a minute, as often as an idle dispatcher sweeps.
        hand_over: "auto" hands messages over in one script (exactly once) if the store's server holds the topics and no
            policy limits releases. "settle" never uses one script. Defaults to "auto".
    """

    redelivery: Literal["group", "origin"] = "group"
    origins: tuple[str, ...] = ()
    headers: Literal["own", "spring"] = "own"
    batch: int = 250
    idle_ms: int = 30_000
    secrets: tuple[bytes, ...] = ()
    dispatcher: DispatcherConfig = field(default_factory=DispatcherConfig)
    hand_over: Literal["auto", "settle"] = "auto"
    history: int = 0
    reference_above: int = 0
    group_topics: GroupTopics = NAMED_AFTER_GROUP
    announce_ms: int = DISPATCHER_EVERY_MS

    def __post_init__(self) -> None:
        choices = {"redelivery": ("group", "origin"), "headers": ("own", "spring"), "hand_over": ("auto", "settle")}
        problems = settings_problems(self, {"idle_ms": 100, "history": 0, "reference_above": 0}, choices)
        problems += origins_problems(self.origins, self.redelivery)
        if type(self.batch) is not int or not 1 <= self.batch <= 500:
            problems.append(f"expected batch to be a whole number from 1 to 500, got: {self.batch!r}")
        if problems:
            raise ConfigError(problems)


class RetryService:
    """Takes in failed messages, holds them, and sends them again on time.

    Args:
        connection: the connection (store and broker), see `connect`.
        group: the consumer group whose failed messages it takes in.
        policies: a `PolicySet`, or one policy for all topics. Defaults to the default policy.
        config: see `ServiceConfig`.
        seen: called from the intake's thread with each `Taken`. Defaults to nothing.

    Raises:
        ConfigError: the default policy has `fair`, the broker cannot do what `config` asks for, or topics cannot be
            named after the group.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        policies: PolicySet | RetryPolicy | None = None,
        *,
        config: ServiceConfig | None = None,
        seen: Callable[[Taken], None] | None = None,
    ) -> None:
        self.connection = connection
        self.group = check_group(group)
        self.config = config or ServiceConfig()
        self._topics = self.config.group_topics.of(group)
        policy_set = PolicySet(policies) if isinstance(policies, RetryPolicy) else policies or PolicySet()
        if policy_set.default.fair is not None:
            raise ConfigError(FAIR_IN_DEFAULT)
        self._policies = policy_set
        broker, store, dispatching = connection.broker, connection.store, self.config.dispatcher
        log_broker = broker if isinstance(broker, LogBroker) else None
        make: type[IntakeFromQueue | IntakeFromLog] = IntakeFromQueue if log_broker is None else IntakeFromLog
        self.intake: IntakeFromQueue | IntakeFromLog = make(
            connection,
            group,
            policy_set,
            redelivery=self.config.redelivery,
            origins=self.config.origins,
            spring=self.config.headers == "spring",
            secrets=self.config.secrets,
            seen=seen,
            history=self.config.history,
            reference_above=self.config.reference_above,
            dead_kept=self.config.dispatcher.dead_cap,
            topics=self.config.group_topics,
        )
        limited = is_limited(policy_set)
        # limits cannot hold back a message that the server itself pushes
        push = connection.push_target() if self.config.hand_over == "auto" and not limited else None
        self._sender = None if log_broker is None else log_broker.sender(store.namespace, store.shards)
        self._ownership: ShardOwner | None = None
        self._transactions: TransactionalPublisher | None = None
        claims: OwnedShards | None = None
        publisher: Publisher = BrokerPublisher(broker)
        if self._sender is not None:
            dispatching = transactional_config(dispatching, store.shards)
            lease_ms, lapse_cap = dispatching.lease_ms, dispatching.lapse_cap
            self._ownership = ShardOwner(store, self._sender, lease_ms=lease_ms, lapse_cap=lapse_cap)
            claims = OwnedShards(self._ownership)
            publisher = self._transactions = TransactionalPublisher(store, self._ownership, self._sender)
        if isinstance(broker, OriginalsBroker):
            publisher = OriginalsPublisher(publisher, broker)
        elif self.config.reference_above:
            raise ConfigError("expected reference_above to be 0: the broker cannot read single records again")
        if limited:
            publisher = FlowPublisher(publisher, store, policy_set)
        self.dispatcher = Dispatcher(store, publisher, push=push, claims=claims, config=dispatching)
        config = self.config
        reading = Reading(
            self._topics["retry"], group, config.batch, config.idle_ms, lambda: self.dispatcher.stats.reconnects
        )
        self._worker = IntakeWorker(broker, self.intake, reading)
        self._announcer: MemberAnnouncer | None = None
        self._state = "new"
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<RetryService {self.group} {self._state} {self.hand_over} {self.dispatcher!r}>"

    def __enter__(self) -> RetryService:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def hand_over(self) -> str:
        """How due messages get from the store to their topic, see `Connection.hand_over`."""
        if self._sender is not None:
            return "transactions"
        return "one script" if self.dispatcher.push else "claim, publish, settle"

    @property
    def stats(self) -> DispatcherStats:
        """The dispatcher's counters."""
        return self.dispatcher.stats

    def problems(self) -> list[str]:
        """The problems that a restart would fix, in words: parts that do not run, or are stuck."""
        ended = [] if self._worker.alive else ["its intake has ended"]
        return ended + self.dispatcher.problems()

    @property
    def ready(self) -> bool:
        """Whether the dispatcher reaches the store, the intake reaches the broker, and both have their permissions.

        The log names a missing permission.
        """
        barred = self._ownership is not None and self._ownership.refusals
        return self._worker.ready and not barred and self.dispatcher.ready

    def start(self) -> None:
        """Create the group's absent topics, then start the dispatcher and the intake. Later calls do nothing.

        Raises:
            ConfigError: the broker cannot have a topic of such a name.
            BrokerError, StoreError: broker or store refused or does not answer. The call may be repeated.
        """
        with self._lock:
            if self._state != "new":
                return
            create_topics(self.connection.broker, self._topics)
            self._warn_of_timeouts()
            share_topics(self.connection.store, self._policies, by_key=self._sender is None)
            self.dispatcher.start()
            self._worker.start()
            self._announcer = self._make_announcer()
            self._announcer.start()
            self._state = "running"

    def _make_announcer(self) -> MemberAnnouncer:
        retry = self._topics["retry"]
        member = this_process("retry-service", self.group, topics=(retry,), takes_in=(retry,), releases=True)
        return MemberAnnouncer(
            lambda: self.connection.store,
            lambda: replace(
                member, holds={"in_flight": self.stats.in_flight}, lateness=(*self.dispatcher.stats.lateness_counts,)
            ),
            self.config.announce_ms,
            f"{self.group}-announce",
        )

    def _warn_of_timeouts(self) -> None:
        """Warn if the timeouts are not in this order: transaction timeout > lease > delivery timeout.

        The service starts in any case. Even in another order, no message is delivered twice: the transaction that sends
        the messages of a claim also commits the number of the claim, so the broker shows which claims were sent. But
        another process may take back a claim that this process is sending. The messages of this claim are then sent
        later.
        """
        delivery_ms = getattr(self.connection.broker, "delivery_timeout_ms", None)
        transaction_ms = getattr(self.connection.broker, "transaction_timeout_ms", None)
        if self._sender is None or delivery_ms is None or transaction_ms is None:
            return
        lease_ms = self.config.dispatcher.lease_ms
        if not transaction_ms > lease_ms > delivery_ms:
            logger.warning(
                "service.timeouts: expected transaction_timeout_ms > lease_ms > delivery_timeout_ms, got: %d, %d, %d; "
                "nothing is delivered twice, but claims may be taken back while they are sent, and sent later",
                transaction_ms,
                lease_ms,
                delivery_ms,
            )

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the intake, finish the running publishes, and end. No stored message is lost. Idempotent."""
        with self._lock:
            if self._state == "running":
                self._worker.stop(timeout_s)
            if self._transactions is not None:
                self._transactions.stop()
            self.dispatcher.stop(timeout_s)
            if self._ownership is not None and self._sender is not None:
                with contextlib.suppress(StoreError):
                    self._ownership.close()
                self._sender.close()
            if self._announcer is not None:
                self._announcer.stop()
            self._state = "stopped"
