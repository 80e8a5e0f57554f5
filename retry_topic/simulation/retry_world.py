"""The world of retry topics: consumers, retry services and a producer over one store and one broker.

    producer ─► orders ─► consumers ─► retry topic ─► services ─► store ─► services ─► redelivery topic ─► consumers

The broker's topics are queues, or logs of partitions. In an ordered world each message has a key, and the
consumers keep the order of each key's messages.

The product's own classes run in simulated processes. The handler follows the scenario and records each of its calls.
`checker` judges the results that the producer got and the calls of the handler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from retry_topic.connection import Connection
from retry_topic.consumer.config import ConsumerConfig
from retry_topic.consumer.consumer import Consumer
from retry_topic.intake.records import MAX_BODY_BYTES
from retry_topic.message import Message
from retry_topic.policy import Fair, Fixed, PolicySet, RetryPolicy
from retry_topic.service import RetryService, ServiceConfig
from retry_topic.simulation.drawing import (
    CRASH_CAP,
    DELAY_MS,
    END_MS,
    GROUP,
    IDLE_MS,
    JOINED_MS,
    LEASE_MS,
    MAX_ATTEMPTS,
    OUT,
    QUIET_MS,
    SWEEP_MS,
    TOPIC,
    WAIT_MS,
    processes_of,
)
from retry_topic.simulation.fair_watch import FAIR_TIMEOUT_MS, FairWatch
from retry_topic.simulation.hostile import is_forged, number_in, record_of, value_of
from retry_topic.simulation.log_client import RemoteLogBroker
from retry_topic.simulation.log_server import LARGEST_BYTES, LogServer
from retry_topic.simulation.queue_broker import QueueServer, RemoteBroker
from retry_topic.simulation.topic_owners import LeasingServer
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import BrokerError, BrokerUnavailable, WheelSchedError
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import (
    Fault,
    HandIn,
    Scenario,
)
from wheel_sched.simulation.scheduler import tasks_of
from wheel_sched.simulation.store import remote_store
from wheel_sched.simulation.world import World


@dataclass(slots=True)
class SendResult:
    """The result that the producer got for a message.

    `outcome`: "sent", "refused" or "in doubt". `wall_ms`: the store's clock just before the first call. `at_ns`: the
    true time of the same moment.
    """

    outcome: str
    wall_ms: int
    at_ns: int


@dataclass(slots=True)
class HandlerCall:
    """One call of the handler. `outcome`: "ok", "failed", or "running" if it has not ended or its process died."""

    number: int
    attempt: int
    process: str
    began_ns: int
    began_wall_ms: int
    outcome: str = "running"
    ended_ns: int = 0
    ended_wall_ms: int = 0


def attempt_in(item_id: str) -> tuple[int, int] | None:
    """The message number and the attempt (0 if absent) in an item's id m<number>.<attempt>; None for other ids."""
    found = re.match(r"m(\d+)(?:~[^.]*)?(?:\.(\d+))?", item_id)
    return (int(found[1]), int(found[2] or 0)) if found else None


def attempt_of(record: Message) -> tuple[int, int]:
    """The message number and the attempt of a record."""
    header = record.header("retry-attempt") or b"0"
    return number_in(record.value), int(header) if header.isdigit() else 0


class Failing(Exception):
    """The error that the handler raises when the scenario says so."""


class RetryWorld:
    """Runs a scenario. Records the results that the producer got and the calls of the handler.

    Args:
        scenario: the messages, the faults and their times.
        policy: the policy of the services. Defaults to None: `MAX_ATTEMPTS` attempts, with a delay of `DELAY_MS`.
        most_steps: after so many steps of the scheduler the run ends with `TooManySteps`. Defaults to None: the
            default of `World`.
    """

    def __init__(self, scenario: Scenario, policy: RetryPolicy | None = None, most_steps: int | None = None) -> None:
        self.world = world = World(scenario) if most_steps is None else World(scenario, most_steps=most_steps)
        self.policy = policy or RetryPolicy(
            delay=Fixed(DELAY_MS), max_attempts=MAX_ATTEMPTS, retry_after_max_ms=WAIT_MS
        )
        options = scenario.options
        self.store = LeasingServer(world, options["shards"])
        self.log = scenario.world.startswith("retry-log")
        self.ordered = scenario.world.endswith("-ordered")
        self.fair = FairWatch(self.store, self.world) if scenario.world.endswith("-fair") else None
        self.broker: QueueServer | LogServer = LogServer(world) if self.log else QueueServer(world)
        self.broker.create(TOPIC)
        if isinstance(self.broker, LogServer):
            self.broker.positions = self._positions
        self.secrets = (b"a secret of the group",) if options.get("signed") else ()
        self.tries: dict[int, int] = {}  # how often each message was published
        self.fatal = 0  # how many processes a handler has killed
        self.results: dict[int, SendResult] = {}
        # When the producer first began to publish each message: the store's clock in ms, and true time in ns.
        self.begun: dict[int, tuple[int, int]] = {}
        self.attempts: list[HandlerCall] = []
        self.in_hand: dict[int, int] = {}  # by the index of a fault in `World.struck`: see `_count_in_hand`
        world.on_strike = self._count_in_hand
        self.sends = {send.number: send for send in scenario.sends}
        start = {"service": self._service, "consumer": self._consumer, "producer": self._producer}
        for name in processes_of(options):
            world.add_host(name, start[name.partition("-")[0]])

    def run(self) -> None:
        """Run the scenario until nothing is left to do, or until its time is over."""
        self.world.begin()
        # after the clock has stepped back, items wait longer, and the run takes longer
        steps = (fault.amount for fault in self.world.scenario.faults if fault.kind == "step-clock")
        self.world.run(END_MS - sum(step for step in steps if step < 0), self._ended, QUIET_MS)

    def _ended(self) -> bool:
        """Whether nothing is left to do: the producer is done, and nothing waits in the store or in the topics."""
        group = self.broker.groups.get(GROUP) if isinstance(self.broker, LogServer) else None
        if self.log and (group is None or not group.topics):
            return False  # no consumer has joined yet, so nobody knows what is unsettled
        return not self.store.contents.waiting() and len(self.results) == len(self.sends) and not self.unsettled()

    def unsettled(self) -> dict[str, int]:
        """The number of records that a group has not settled, by topic, without the dead topic: nobody reads it."""
        found = self.broker.unsettled(self._positions())
        found.pop(f"{GROUP}.dead", None)
        return found

    def _positions(self) -> dict[str, int]:
        """For each source (a partition that a group reads), the position up to which the store has taken it in."""
        return self.store.contents.positions()

    def _count_in_hand(self, fault: Fault, call: str) -> None:
        """Count the messages that a fault may repeat. `call` is the call that the fault strikes, or "".

        A fault that strikes a service can repeat the messages that services have claimed and may have published. Any
        other fault can repeat the messages that consumers have read and not settled. If the topics are logs, nothing
        is counted, because moving partitions cause repeats too. The checker then allows `AT_ONCE` repeats: the most
        messages that one process holds.
        """
        broker, role = self.broker, fault.target.partition("-")[0]
        if isinstance(broker, LogServer):
            return
        if role == "service":
            published = {None, *(attempt_of(record) for topic in OUT for record in broker.records(topic))}
            publishing = call.startswith("broker publish") or self._is_calling(fault.target, "broker publish")
            claimed = [item for item in self.store.contents.items() if item.state == "leased"]
            found = sum(publishing or attempt_in(item.id) in published for item in claimed)
            # With several shards, the intake marks a record as taken in by a second call. A paused service may have
            # looked before that call. It has found no mark, and stores the record when it continues.
            if self.world.scenario.options["shards"] > 1 or fault.kind == "pause":
                found += broker.leased([f"{GROUP}.retry"])
        else:
            found = broker.leased([TOPIC, f"{GROUP}.redelivery"])
        self.in_hand[len(self.world.struck)] = found

    def _is_calling(self, host: str, call: str) -> bool:
        """Whether a process waits for the reply to a call that begins with `call`."""
        process = self.world.hosts[host].process
        return any(task.calling.startswith(call) for task in tasks_of(process))

    def _connection(self) -> Connection:
        world, server = self.world, self.broker
        broker = RemoteBroker(world, server) if isinstance(server, QueueServer) else RemoteLogBroker(world, server)
        return Connection(remote_store(world, self.store, self.store.shards), broker)

    def _service(self) -> Callable[[], object]:
        config = ServiceConfig(
            idle_ms=IDLE_MS,
            secrets=self.secrets,
            dispatcher=DispatcherConfig(
                lease_ms=LEASE_MS,
                workers=self.world.scenario.options["workers"],
                sweep_ms=SWEEP_MS,
                publish_timeout_ms=20_000,
                batch=self.world.scenario.options.get("batch", 80),
            ),
            announce_ms=0,  # announcements are for people, and would add a call to every history
        )
        policies = PolicySet(self.policy, {TOPIC: replace(self.policy, fair=self._fair())})
        service = RetryService(self._connection(), GROUP, policies, config=config)
        self._until_started(service.start)
        return service.stop

    def _fair(self) -> Fair | None:
        if self.fair is None:
            return None
        return Fair("key", max_in_flight=self.world.scenario.options["cap"], in_flight_timeout_ms=FAIR_TIMEOUT_MS)

    def _consumer(self) -> Callable[[], object]:
        config = ConsumerConfig(
            concurrency=3,
            idle_ms=IDLE_MS,
            crash_cap=CRASH_CAP,
            secrets=self.secrets,
            ordering="key" if self.ordered else "none",
            reports=self.fair is not None,
            announce_ms=0,
        )
        consumer = Consumer(self._connection(), TOPIC, self._handle, group=GROUP, config=config)
        self._until_started(consumer.start)
        return consumer.stop

    def _until_started(self, start: Callable[[], object]) -> None:
        while True:
            try:
                start()
                return
            except WheelSchedError:
                self.world.scheduler.sleep_ns(300 * MS)

    def _producer(self) -> Callable[[], object]:
        """Publish each message that has no result. A new producer process continues where the old process died."""
        connection = self._connection()
        for send in sorted(self.sends.values(), key=lambda send: (send.at, send.number)):
            if send.number not in self.results:
                at_ms = send.at + (JOINED_MS if isinstance(self.broker, LogServer) else 0)
                self.world.scheduler.sleep_ns(max(0, at_ms * MS - self.world.scheduler.now_ns))
                self._publish(connection, send)
        return lambda: None

    def _publish(self, connection: Connection, send: HandIn) -> None:
        """Publish a message as a careful producer does: after a call in doubt, it repeats the call with the same id."""
        world = self.world
        wall_ms, at_ns = self.store.wall_ms(), world.scheduler.now_ns
        if send.number in self.begun:  # the earlier producer process died during this call
            wall_ms, at_ns = self.begun[send.number]
        self.begun[send.number] = wall_ms, at_ns
        times = 2 if send.kind == "twice" else 1
        for _ in range(30):
            try:
                self.tries[send.number] = self.tries.get(send.number, 0) + 1
                self._publish_once(connection, send)
            except WheelSchedError as error:
                if isinstance(error, BrokerError) and not isinstance(error, BrokerUnavailable):
                    world.note("producer", f"message {send.number} is refused: {error}")
                    self.results[send.number] = SendResult("refused", wall_ms, at_ns)
                    return
                world.note("producer", f"publish {send.number}: {error}")
                world.scheduler.sleep_ns(400 * MS)
                continue
            times -= 1
            if not times:
                break
        world.note("producer", f"message {send.number} is {'in doubt' if times else 'sent'}")
        self.results[send.number] = SendResult("in doubt" if times else "sent", wall_ms, at_ns)

    def _publish_once(self, connection: Connection, send: HandIn) -> None:
        if is_forged(send) or send.kind == "duplicated":
            record = record_of(send, GROUP, TOPIC)
            for failure in connection.broker.publish([record] * (2 if send.kind == "duplicated" else 1)):
                if failure is not None:
                    raise BrokerUnavailable(failure.reason, in_doubt=failure.in_doubt)
            return
        delay, key = send.delay / 1_000 if send.delay else None, send.key.encode() or None
        connection.publish(TOPIC, self.value_of(send), key=key, delay=delay, id=f"m{send.number}")

    def value_of(self, send: HandIn) -> bytes:
        """The payload of a message."""
        return value_of(send, LARGEST_BYTES if self.log else MAX_BODY_BYTES)  # over queues only the intake has a limit

    def _handle(self, message: Message) -> None:
        world = self.world
        scheduler = world.scheduler
        number = number_in(message.value)
        header = message.header("retry-attempt") or b"0"
        send = self.sends[number]
        before = sum(one.number == number and one.outcome == "failed" for one in self.attempts)
        attempt = HandlerCall(
            number,
            int(header) if header.isdigit() else 0,
            scheduler.process.name,
            scheduler.now_ns,
            self.store.wall_ms(),
        )
        self.attempts.append(attempt)
        if send.lasts:
            scheduler.sleep_ns(send.lasts * MS)
        attempt.ended_ns, attempt.ended_wall_ms = scheduler.now_ns, self.store.wall_ms()
        again = send.kind == "then-fails" and any(one.number == number and one.outcome == "ok" for one in self.attempts)
        if send.kind == "poison":
            self.fatal += 1
            world.hosts_of[scheduler.process].die(f"message {number} kills it")
            scheduler.block(None)
        if (before if is_forged(send) else attempt.attempt) < send.fails or again:
            attempt.outcome = "failed"
            world.note(attempt.process, f"message {number}, attempt {attempt.attempt}: fails")
            raise Failing(f"attempt {attempt.attempt}")
        attempt.outcome = "ok"
        world.note(attempt.process, f"message {number}, attempt {attempt.attempt}: succeeds")
