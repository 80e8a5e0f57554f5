"""The world of durable operations: runners, visitors and a consumer over one store.

    visitors ─► operations ─► runners ─► dead letters ─► waiting messages ─► consumer ─► dead letters again

Runners, the records of operations and the changes of single letters are the product's own code. The consumer stands for
a retry group: it takes what is due, and a message that has not been replayed often enough dies again under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetters
from retry_topic.management.dead_letter_operations import DELETE, REPLAY, DeleteDeadLetters, ReplayDeadLetters
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from retry_topic.simulation.operations.drawing import (
    CLAIM_LEASE_MS,
    END_MS,
    MAKES,
    MAX_REPLAYS,
    QUIET_MS,
    RUNNER_LEASE_MS,
    SINGLE,
    TOPIC,
    processes_of,
)
from retry_topic.simulation.operations.watching import WatchedStore, replays_of
from retry_topic.simulation.queue_broker import QueueServer, RemoteBroker
from wheel_sched.errors import NotDone, WheelSchedError
from wheel_sched.management.operations import DurableOperation, OperationBook, OperationKind, OperationRunner
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import HandIn, Scenario
from wheel_sched.simulation.store import RemoteStore, remote_store
from wheel_sched.simulation.world import World
from wheel_sched.store import DelayStore, Item
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.settle import Done

_AGAIN_MS = 400  # a visitor waits so long after an error
_TRIES = 200


class DirectStore(RemoteStore):
    """A client that reaches the server at once and without faults, for the scenario itself and for the checker."""

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Overrides `RemoteStore.execute`."""
        if all(call.operation.reads for call in calls):
            return self._server.contents.execute(calls, self._server.wall_us())  # also while the server loads its data
        return self._server.perform(calls)


class OperationsWorld:
    """Runs a scenario.

    Args:
        scenario: letters, operations, what visitors do, and the faults.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.world = world = World(scenario)
        self.store = WatchedStore(world, scenario.options["shards"])
        self.direct = DelayStore(DirectStore(world, self.store), shards=self.store.shards)
        self._broker = QueueServer(world)
        self.letters = {step.number: step for step in scenario.sends if step.kind == "plain"}
        self.makes = {step.number: step for step in scenario.sends if step.kind in MAKES}
        self.meddles = [step for step in scenario.sends if step.kind not in ("plain", *MAKES)]
        self.finished: set[HandIn | int] = set()  # what visitors have done; the places of `meddles`
        self.sent: dict[tuple[str, int], str] = {}  # by id and number of replays: "waits", "ok" or "dead"
        start = {
            "runner": self._runner,
            "visitor": self._visitor,
            "meddler": self._meddler,
            "consumer": self._consumer,
        }
        for name in processes_of(scenario.options):
            world.add_host(name, start[name.partition("-")[0]])

    def run(self) -> None:
        """Run the scenario until nothing is left to do, or until its time is over."""
        for letter in sorted(self.letters.values(), key=lambda letter: letter.number):
            if not letter.at:
                self._bury(self.direct, letter, 0, 10)
        self.world.begin()
        steps = (fault.amount for fault in self.world.scenario.faults if fault.kind == "step-clock")
        self.world.run(END_MS - sum(step for step in steps if step < 0), self._ended, QUIET_MS)

    def operations(self) -> list[DurableOperation]:
        """The records of all operations, as the store had them last."""
        return [records[-1][1] for records in self.store.records.values()]

    def _ended(self) -> bool:
        now_ns = self.world.scheduler.now_ns
        return (
            len(self.finished) == len(self.makes) + len(self.meddles)
            and "waits" not in self.sent.values()
            and len(self.store.deaths) == len(self.letters)
            and not self.store.contents.waiting()
            and not any(one.state in ("counting", "running") or one.batch is not None for one in self.operations())
            and all(host.process.paused_until_ns <= now_ns for host in self.world.hosts.values())
        )

    # -- letters

    def _bury(self, store: DelayStore, letter: HandIn, replays: int, age_ms: int = 0) -> None:
        """Store a dead letter as the intake does."""
        state = RetryState(
            id=f"m{letter.number}",
            attempt=3,
            original_topic=TOPIC,
            original_offset=f"{letter.number}",
            consumer_group="billing",
            error_class="builtins.ValueError",
            error_message="wrong",
            error_fingerprint=letter.key,
            replays=replays,
        )
        body = encode_body(Message(TOPIC, b"1", None, ()).to(TOPIC, write((), state)))
        item = Item(f"m{letter.number}.3", store.now_ms() - age_ms, body, TOPIC, (f"fp:{letter.key}",))
        store.bury([(item, "max-attempts: builtins.ValueError")])

    def _has_died(self, letter: HandIn) -> bool:
        return f"m{letter.number}.3" in self.store.deaths

    # -- processes

    def _connection(self) -> Connection:
        store = remote_store(self.world, self.store, self.store.shards)
        return Connection(store, RemoteBroker(self.world, self._broker))

    def _runner(self) -> Callable[[], object]:
        connection = self._connection()
        kinds: list[OperationKind] = [ReplayDeadLetters(connection), DeleteDeadLetters(connection)]
        return OperationRunner(connection.store, kinds, lease_ms=RUNNER_LEASE_MS).start().close

    def _consumer(self) -> Callable[[], object]:
        store = remote_store(self.world, self.store, self.store.shards)

        def work() -> None:
            while True:
                try:
                    for letter in self.letters.values():
                        if letter.at and letter.at <= self.world.now_ms and not self._has_died(letter):
                            self._bury(store, letter, 0)
                    for shard in range(self.store.shards):
                        self._consume(store, shard)
                except WheelSchedError as error:
                    self.world.note("consumer", f"waits: {type(error).__name__}")
                self.world.scheduler.sleep_ns(600 * MS)

        self.world.scheduler.spawn(self.world.scheduler.process, "work", work)
        return lambda: None

    def _consume(self, store: DelayStore, shard: int) -> None:
        claim = store.claim(20, lease_ms=CLAIM_LEASE_MS, shard=shard)
        for item in claim.items:
            # the message is in the topic before the item is settled
            self.sent.setdefault((item.id, replays_of(item.body)), "waits")
        if claim.items:
            store.settle(claim, [Done(item.id) for item in claim.items])
        kept = {item.id: item for item in self.store.contents.items()}
        for (item_id, replays), outcome in list(self.sent.items()):
            letter = self.letters[int(item_id[1:].partition(".")[0])]
            if outcome != "waits":
                continue
            if replays > letter.fails:
                self.sent[item_id, replays] = "ok"
            elif any(death.replays == replays for death in self.store.deaths[item_id]):
                self.sent[item_id, replays] = "dead"
            elif item_id not in kept:
                self._bury(store, letter, replays)

    # -- visitors

    def _at(self, step: HandIn) -> None:
        self.world.scheduler.sleep_ns(max(0, step.at * MS - self.world.scheduler.now_ns))

    def _patiently(self, who: str, do: Callable[[], bool]) -> None:
        """Call `do` until it returns true. After an error of the store it is called again."""
        for _ in range(_TRIES):
            try:
                if do():
                    return
            except NotDone as error:
                self.world.note(who, f"{error}")
            except WheelSchedError as error:
                self.world.note(who, f"waits: {type(error).__name__}")
            self.world.scheduler.sleep_ns(_AGAIN_MS * MS)

    def _visitor(self) -> Callable[[], object]:
        """Make an operation and confirm it. A new process goes on where the last one died."""
        who = self.world.hosts_of[self.world.scheduler.process].name
        step = self.makes.get(int(who.rpartition("-")[2]))
        if step is None or step in self.finished:
            return lambda: None
        book = OperationBook(remote_store(self.world, self.store, self.store.shards))
        self._at(step)
        self._patiently(who, lambda: self._make(book, step, who))
        if not step.fails:
            self._patiently(who, lambda: self._confirm(book, step, who))
        self.finished.add(step)
        return lambda: None

    def made(self, number: int) -> DurableOperation | None:
        """The operation that a visitor has made, as the store had it last."""
        own = [one for one in self.operations() if one.who == f"visitor-{number}"]
        return own[0] if own else None

    def _make(self, book: OperationBook, step: HandIn, who: str) -> bool:
        if self.made(step.number) is not None:
            return True
        arguments = {"topic": TOPIC, "group": step.key, "max_replays": f"{MAX_REPLAYS}"}
        book.create(DELETE if step.kind == "delete" else REPLAY, arguments, who, rate=step.delay or None)
        return True

    def _confirm(self, book: OperationBook, step: HandIn, who: str) -> bool:
        made = self.made(step.number)
        if made is None:
            return True
        found = book.get(made.id)
        if found is None or found.state == "counting":
            return False
        if found.state == "ready":
            self.world.scheduler.sleep_ns(step.lasts * MS)
            book.confirm(found.id, who, found.version)
        return True

    def _meddler(self) -> Callable[[], object]:
        """Do in order what people do in a dashboard: they change operations and single dead letters."""
        connection = self._connection()
        book = OperationBook(connection.store)
        for place, step in sorted(enumerate(self.meddles), key=lambda one: one[1].at):
            if place in self.finished:
                continue
            self._at(step)
            self._meddle(connection, book, step)
            self.finished.add(place)
        return lambda: None

    def _meddle(self, connection: Connection, book: OperationBook, step: HandIn) -> None:
        try:
            if step.kind in SINGLE:
                chosen = DeadLetterFilter(ids=frozenset([f"m{step.number}.3"]))
                letters = DeadLetters(connection)
                if step.kind == "delete-one":
                    letters.delete(chosen)
                else:
                    letters.replay(chosen, max_replays=MAX_REPLAYS)
            elif (made := self.made(step.number)) is not None:
                {"pause": book.pause, "resume": book.resume, "cancel": book.cancel}[step.kind](made.id)
        except WheelSchedError as error:
            self.world.note("meddler", f"{step.kind}: {error}")
