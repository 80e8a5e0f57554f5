"""The world of retry topics: consumers, retry services and a producer over one store and one queue broker.

    producer ─► orders ─► consumers ─► retry topic ─► services ─► store ─► services ─► redelivery topic ─► consumers

The products' own classes run in simulated processes. The handler does what the scenario says and writes down each call.
`checker` judges what producers were told and what handlers saw.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from retry_topic.connection import Connection
from retry_topic.consumer.config import ConsumerConfig
from retry_topic.consumer.consumer import Consumer
from retry_topic.message import Message
from retry_topic.policy import Fixed, RetryPolicy
from retry_topic.service import RetryService, ServiceConfig
from retry_topic.simulation.log_client import RemoteLogBroker
from retry_topic.simulation.log_server import LogServer
from retry_topic.simulation.queue_broker import QueueServer, RemoteBroker
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import WheelSchedError
from wheel_sched.simulation.scenario import HandIn, Scenario, Step, draw_faults
from wheel_sched.simulation.store import StoreServer, remote_store
from wheel_sched.simulation.world import MS, World
from wheel_sched.store.log_intake import LogIntakeInMemory

GROUP = "billing"
TOPIC = "orders"
SPAN_MS = 8_000
DELAY_MS = 1_000
MAX_ATTEMPTS = 4
IDLE_MS = 2_000
LEASE_MS = 2_000
QUIET_MS = 8_000  # longer than each lease, pause and backoff
END_MS = 90_000  # everything must have ended by then: see `checker`

SERVER_FAULTS = {
    "store": ("outage", "step-clock", "read-only", "full", "rewind"),
    "broker": ("outage", "redeliver"),
}


@dataclass(slots=True)
class Told:
    """What a producer was told about a message.

    `outcome`: "sent", "refused" or "in doubt". `wall_ms`: the store's clock just before the call. `at_ns`: true time.
    """

    outcome: str
    wall_ms: int
    at_ns: int


@dataclass(slots=True)
class HandlerCall:
    """One call of the handler. `outcome`: "running", "ok" or "failed"; "running" for ever if the process died."""

    number: int
    attempt: int
    process: str
    began_ns: int
    began_wall_ms: int
    outcome: str = "running"
    ended_ns: int = 0
    ended_wall_ms: int = 0


class Failing(Exception):
    """The handler fails, because the scenario says so."""


def draw(seed: int, *, log: bool = False, messages: int = 20, faults: int | None = None) -> Scenario:
    """Draw a scenario. One history in four has few faults, so that each repeat must have its reason.

    Args:
        seed: decides everything.
        log: whether the topics are logs with transactions, as Kafka's, instead of queues. Defaults to False.
        messages: how many messages. Defaults to 20.
        faults: how many faults. Defaults to 0 to 5.
    """
    name = "retry-log" if log else "retry"
    rng = random.Random(f"{name} {seed}")
    faults = rng.choice((0, 1, 1, 2, *[5] * 12)) if faults is None else faults
    steps: list[Step] = []
    for number in range(messages):
        steps.append(
            HandIn(
                number,
                at=rng.randrange(SPAN_MS // 2),
                delay=rng.choice((0, 0, 0, 300, 1_500)),
                fails=rng.choice((0, 0, 1, 1, 2, MAX_ATTEMPTS)),
                lasts=rng.choice((0, 0, 0, 0, 5, 50, 1_000, 3_000)),
                kind="plain" if log else rng.choice(("plain", "plain", "plain", "twice")),
            )
        )
    options = {
        "services": rng.choice((1, 1, 2)),
        "consumers": rng.choice((1, 2)),
        "shards": rng.choice((1, 2)),
        "workers": rng.choice((1, 1, 2)),
    }
    processes = _processes(options)
    steps += draw_faults(
        rng, faults, processes, SERVER_FAULTS, calls=60, span_ms=SPAN_MS, pause_ms=(100, 1_000, 3_000, 7_000)
    )
    return Scenario(seed, name, rng.getrandbits(32), tuple(steps), options)


def _processes(options: dict[str, int]) -> list[str]:
    services = [f"service-{number}" for number in range(options["services"])]
    return [*services, *(f"consumer-{number}" for number in range(options["consumers"])), "producer"]


class RetryWorld:
    """Runs a scenario and keeps what was told and seen."""

    def __init__(self, scenario: Scenario) -> None:
        self.world = world = World(scenario)
        options = scenario.options
        self.store = StoreServer(world, options["shards"])
        self.broker: QueueServer | LogServer = LogServer(world) if scenario.world == "retry-log" else QueueServer(world)
        self.broker.create(TOPIC)
        self.told: dict[int, Told] = {}
        self.begun: dict[int, tuple[int, int]] = {}  # when a producer began to publish: store's wall ms, true ns
        self.attempts: list[HandlerCall] = []
        self.sends = {send.number: send for send in scenario.sends}
        start = {"service": self._service, "consumer": self._consumer, "producer": self._producer}
        for name in _processes(options):
            world.add_host(name, start[name.partition("-")[0]])

    def run(self) -> None:
        """Run the history."""
        self.world.begin()
        # an item that waits for a clock that was set back waits longer
        steps = (fault.amount for fault in self.world.scenario.faults if fault.kind == "step-clock")
        self.world.run(END_MS - sum(step for step in steps if step < 0), self._ended, QUIET_MS)

    def _ended(self) -> bool:
        """Whether nothing waits any more, in the store and in the topics."""
        waiting = any(shard.due or shard.leased or shard.held for shard in self.store.backend.shards)
        return not waiting and len(self.told) == len(self.sends) and not self.unsettled()

    def unsettled(self) -> dict[str, int]:
        """The number of records that a group has not settled, by topic. Nobody reads the dead topic."""
        positions: dict[str, int] = {}
        for shard in self.store.backend.shards:
            for source, position in shard.room(LogIntakeInMemory).positions.items():
                positions[source] = max(position, positions.get(source, 0))
        found = self.broker.unsettled(positions)
        found.pop(f"{GROUP}.dead", None)
        return found

    def _connection(self) -> Connection:
        world, server = self.world, self.broker
        broker = RemoteBroker(world, server) if isinstance(server, QueueServer) else RemoteLogBroker(world, server)
        return Connection(remote_store(world, self.store, self.store._shards), broker)

    def _service(self) -> Callable[[], object]:
        config = ServiceConfig(
            idle_ms=IDLE_MS,
            dispatcher=DispatcherConfig(
                lease_ms=LEASE_MS,
                workers=self.world.scenario.options["workers"],
                sweep_ms=5_000,
                publish_timeout_ms=20_000,
            ),
        )
        policy = RetryPolicy(delay=Fixed(DELAY_MS), max_attempts=MAX_ATTEMPTS)
        service = RetryService(self._connection(), GROUP, policy, config=config)
        self._until_started(service.start)
        return service.stop

    def _consumer(self) -> Callable[[], object]:
        config = ConsumerConfig(concurrency=3, idle_ms=IDLE_MS)
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
        """Publish what was not published yet: a producer that died goes on where nobody told it the result."""
        connection = self._connection()
        for send in sorted(self.sends.values(), key=lambda send: (send.at, send.number)):
            if send.number not in self.told:
                self.world.scheduler.sleep_ns(max(0, send.at * MS - self.world.scheduler.now_ns))
                self._publish(connection, send)
        return lambda: None

    def _publish(self, connection: Connection, send: HandIn) -> None:
        """Publish a message as a careful producer does: in doubt, it repeats the call with the same id."""
        world = self.world
        wall_ms, at_ns = self.store.wall_ms(), world.scheduler.now_ns
        if send.number in self.begun:  # the process before has died in the middle of it
            wall_ms, at_ns = self.begun[send.number]
        self.begun[send.number] = wall_ms, at_ns
        times = 2 if send.kind == "twice" else 1
        for _ in range(30):
            try:
                delay = send.delay / 1_000 if send.delay else None
                connection.publish(TOPIC, b"%d" % send.number, delay=delay, id=f"m{send.number}")
            except WheelSchedError as error:
                world.note("producer", f"publish {send.number}: {error}")
                world.scheduler.sleep_ns(400 * MS)
                continue
            times -= 1
            if not times:
                break
        world.note("producer", f"message {send.number} is {'in doubt' if times else 'sent'}")
        self.told[send.number] = Told("in doubt" if times else "sent", wall_ms, at_ns)

    def _handle(self, message: Message) -> None:
        world = self.world
        scheduler = world.scheduler
        number = int(message.value)
        header = message.header("retry-attempt")
        send = self.sends[number]
        attempt = HandlerCall(
            number, int(header or b"0"), scheduler.process.name, scheduler.now_ns, self.store.wall_ms()
        )
        self.attempts.append(attempt)
        if send.lasts:
            scheduler.sleep_ns(send.lasts * MS)
        attempt.ended_ns, attempt.ended_wall_ms = scheduler.now_ns, self.store.wall_ms()
        if attempt.attempt < send.fails:
            attempt.outcome = "failed"
            world.note(attempt.process, f"message {number}, attempt {attempt.attempt}: fails")
            raise Failing(f"attempt {attempt.attempt}")
        attempt.outcome = "ok"
        world.note(attempt.process, f"message {number}, attempt {attempt.attempt}: succeeds")
