"""Fixtures of the Kafka tests. The session's broker (`kafka`) and unused names on it (`name`) come from
tests/conftest.py.

A crew is a group whose services and consumers run in separate processes. A test kills a process in a chosen state: it
stops the process, looks at the state, and kills it only if the state is the wanted one. Otherwise the process
continues.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
import redis

from retry_topic import Connection, Message, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.encoding import decode_body
from retry_topic.message.topic_names import (
    dead_topic_of,
    intake_group_of,
    redelivery_topic_of,
    retry_topic_of,
    source_of,
)
from tests.servers.valkey import temporary_server
from wheel_sched.errors import StoreError
from wheel_sched.store import LogIntake, State

if TYPE_CHECKING:
    from tests.servers.kafka import TemporaryKafka
    from tests.servers.valkey import TemporaryServer

PATIENCE_S = 180.0
SCRIPTS = Path(__file__).parent / "processes"

# a dead member's partitions go to others after this long
CLASSIC = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the waits of the conformance suite longer, because a group's rebalance takes seconds."""
    monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)


@pytest.fixture
def committed(kafka: TemporaryKafka) -> Callable[[str], list[Message]]:
    """A function that returns all records of a topic, as a reader of committed records finds them now."""
    return lambda topic: _found(kafka.bootstrap, topic, "read_committed")


@pytest.fixture
def uncommitted(kafka: TemporaryKafka) -> Callable[[str], list[Message]]:
    """A function that returns all records of a topic, aborted ones included."""
    return lambda topic: _found(kafka.bootstrap, topic, "read_uncommitted")


def _found(servers: str, topic: str, level: str) -> list[Message]:
    from confluent_kafka import Consumer, TopicPartition

    from retry_topic.brokers.kafka.records import from_record

    client: Any = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "looker",
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = client.list_topics(topic, timeout=30).topics[topic].partitions
    client.assign([TopicPartition(topic, number, 0) for number in places])
    found: list[Message] = []
    left = len(places)
    until_s = time.monotonic() + 120
    while left:
        assert time.monotonic() < until_s, f"{topic}: {left} partitions were not read to their end"
        record = client.poll(1.0)
        if record is None:
            continue
        if record.error() is None:
            found.append(from_record(record))
        else:
            left -= 1  # the end of a partition
    client.close()
    return found


def until(
    condition: Callable[[], bool],
    describe: Callable[[], object] = lambda: "",
    *,
    despite: type[Exception] | tuple[()] = (),
    pause_s: float = 0.02,
) -> None:
    """Wait for a condition that other threads or processes bring about.

    Args:
        condition: called again and again until it is true.
        describe: describes the state, for the error after `PATIENCE_S` seconds.
        despite: errors that `condition` may raise meanwhile.
        pause_s: seconds between two calls.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except despite:
            pass
        assert time.monotonic() < until_s, f"waited in vain: {describe()}"
        time.sleep(pause_s)  # polls: other processes send no event


class Until(Protocol):
    """The signature of `until`, for annotations in tests."""

    def __call__(
        self,
        condition: Callable[[], bool],
        describe: Callable[[], object] = ...,
        *,
        despite: type[Exception] | tuple[()] = ...,
        pause_s: float = ...,
    ) -> None: ...


@pytest.fixture(name="until")
def _until() -> Until:
    """The function `until` as a fixture."""
    return until


class Member:
    """A service or a consumer in its own process. The facts that it reports are at most about 0.05 s old."""

    def __init__(self, script: str, place: Path, settings: dict[str, Any]) -> None:
        self.script = script
        files = {what: str(place.with_suffix(f".{what}")) for what in ("facts_file", "log", "handled")}
        self.facts_file, self.log = Path(files["facts_file"]), Path(files["log"])
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), json.dumps({**settings, **files})]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)

    def __repr__(self) -> str:
        return f"<{self.script} {self.facts_file.stem} {self.process.poll()} {self.facts()}>"

    def facts(self) -> dict[str, Any]:
        """The facts that the process reported last. Empty before the process runs."""
        try:
            facts: dict[str, Any] = json.loads(self.facts_file.read_text())
        except FileNotFoundError:
            return {}
        return facts

    @property
    def parts(self) -> set[int]:
        """The partitions of the retry topic that this member reads."""
        return {*self.facts().get("parts", ())}

    def log_text(self) -> str:
        """The log of the process, with the output of librdkafka."""
        return self.log.read_text() if self.log.exists() else ""

    def up(self) -> Member:
        """Wait until the process runs."""
        until(lambda: self.facts_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log_text()
        return self

    def freeze(self) -> None:
        """Stop the process wherever it is (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)
        happened = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert happened is not None
        assert happened.si_code == os.CLD_STOPPED, f"the process has ended by itself: {self.log_text()}"

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def killed_if(self, hit: Callable[[], bool]) -> bool:
        """Stop the process, and kill it if `hit` holds. Otherwise let it continue. Returns whether it was killed."""
        self.freeze()
        if hit():
            self.kill()
            return True
        self.thaw()
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def leave(self) -> None:
        """End the process as a user would: close its stdin and wait."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.log_text()

    def close(self) -> None:
        """Kill the process in any state. Idempotent."""
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Shard(NamedTuple):
    """The owner of a shard and the numbers of its open claims, as the store has them at one moment. `owner` is
    empty if nobody owns the shard."""

    owner: str
    claims: frozenset[int]


class Crew:
    """A group with its processes, over the test session's broker and a store server of its own."""

    until = staticmethod(partial(until, despite=StoreError))  # the store's server may be down while it restarts

    def __init__(
        self,
        kafka: TemporaryKafka,
        server: TemporaryServer,
        name: str,
        folder: Path,
        stack: ExitStack,
        *,
        partitions: int = 6,
        shards: int = 1,
        client: dict[str, Any] | None = None,
        broker: dict[str, Any] | None = None,
        **service: Any,
    ) -> None:
        self.server, self.name, self.topic, self.partitions = server, name, f"{name}-orders", partitions
        self.services: list[Member] = []
        self.consumers: list[Member] = []
        self.folder, self._shards, self._stack = folder, shards, stack
        self._settings = {
            "client": {"bootstrap.servers": kafka.bootstrap, **(CLASSIC if client is None else client)},
            "broker": broker or {},
            "store": server.url,
            "name": name,
            "shards": shards,
            "topic": self.topic,
        }
        self._service = {"delay_ms": 300, "cap": 4, "batch": 250, "dispatcher": {"lease_ms": 1_000}, **service}
        self.broker = KafkaBroker(kafka.bootstrap, partitions=partitions)
        self.connection: Connection = connect(server.url, broker=self.broker, namespace=name, shards=shards)
        stack.callback(self.connection.close)
        self._redis = stack.enter_context(redis.Redis.from_url(server.url))
        for topic in (self.topic, retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            self.broker.create_topic(topic)
        self._topic_id = self.broker.topic_id(retry_topic_of(name))
        self._number = 0

    # -- its processes

    def start_service(self, **settings: Any) -> Member:
        """Start one more process that takes in failed messages and dispatches."""
        return self._start("service", self.services, {**self._service, **settings})

    def start_consumer(self, **settings: Any) -> Member:
        """Start one more process that handles messages. Three of ten attempts fail; see processes/consumer.py."""
        return self._start("consumer", self.consumers, {"consumer": settings})

    def _start(self, script: str, kind: list[Member], settings: dict[str, Any]) -> Member:
        self._number += 1
        member = Member(script, self.folder / f"{script}{self._number}", {**self._settings, **settings})
        self._stack.callback(member.close)
        kind.append(member)
        return member

    def strike(
        self,
        kind: list[Member],
        seems: Callable[[Member], bool],
        hit: Callable[[Member], bool],
        feed: Callable[[], None],
    ) -> Member:
        """Stop processes of `kind` in turn, and kill the first one for which `hit` holds. A stopped process cannot
        change its state before the kill. Returns the killed process.

        Args:
            kind: the services or the consumers. The killed process is removed from this list.
            seems: a cheap check whether stopping the process is worth while.
            hit: the check of the stopped process.
            feed: gives the processes work. Called while they have none; the pause between two calls doubles each time.
        """
        until_s = time.monotonic() + PATIENCE_S
        fed_s, wait_s = time.monotonic(), 0.25
        while True:
            for member in random.sample(kind, len(kind)):
                if seems(member) and member.killed_if(partial(hit, member)):
                    kind.remove(member)
                    return member
            if time.monotonic() - fed_s > wait_s and not self.busy():
                feed()
                fed_s, wait_s = time.monotonic(), 2 * wait_s
            assert time.monotonic() < until_s, f"no process was at work: {kind} {self.connection.store.counts()}"
            time.sleep(0.001)  # polls: other processes send no event

    def restart_server(self) -> None:
        """Kill the store's server and start it again with its append-only file."""
        self.server.sigkill()
        self.server.restart()
        self.until(lambda: self.connection.store.now_ms() > 0)

    # -- the state of the store and of the topics

    def shard(self, number: int) -> Shard:
        """The state of a shard at one moment."""
        both = self._redis.pipeline()
        both.hget(f"{{{self.name}:{number}}}:meta", "owner")
        both.hvals(f"{{{self.name}:{number}}}:claim")
        owner, claims = both.execute()
        return Shard((owner or b"").decode(), frozenset(int(one.lstrip(b"!").split(b":")[0]) for one in claims))

    def has_claims(self, member: Member) -> bool:
        """Whether a service owns a shard that has open claims."""
        owner = member.facts().get("owner")
        found = [self.shard(number) for number in range(self._shards)]
        return any(one.claims and one.owner == owner for one in found)

    def busy(self) -> bool:
        """Whether a message of the store is in flight, or will be due within a second."""
        counts = self.connection.store.counts()
        soon_ms = counts.now_us // 1_000 + 1_000
        return counts.total("leased") > 0 or (counts.due_head_ms is not None and counts.due_head_ms <= soon_ms)

    def ends(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """The end offset of each partition of a topic. `committed`: up to the first open transaction."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, number) for number in range(self.partitions)]
        return {number: end for (_, number), end in self.broker.topology.ends(places, committed=committed).items()}

    def positions(self) -> dict[int, int]:
        """The store's position of each partition of the retry topic."""
        numbers = range(self.partitions)
        sources = [source_of(intake_group_of(self.name), self._topic_id, number) for number in numbers]
        return {
            number: found or 0
            for number, found in zip(numbers, LogIntake(self.connection.store).positions(sources), strict=True)
        }

    def lag(self, parts: Iterable[int]) -> int:
        """How many offsets of these retry topic partitions the store has not read. Transaction markers count too."""
        positions, ends = self.positions(), self.ends(retry_topic_of(self.name))
        return sum(ends[number] - positions[number] for number in parts)

    def grows(self, parts: Iterable[int], feed: Callable[[], None]) -> bool:
        """Whether these partitions of the retry topic get records soon after `feed`."""
        topic = retry_topic_of(self.name)
        before, until_s = self.ends(topic), time.monotonic() + 1.5  # half a session: a stopped process stays a member
        feed()
        while time.monotonic() < until_s:
            ends = self.ends(topic)
            if any(ends[number] - before[number] >= 2 for number in parts):  # one can be a transaction marker
                return True
            time.sleep(0.02)  # polls: other processes send no event
        return False

    def stored(self, state: State) -> Counter[int]:
        """How many items of this state the store has for each message, by the message's number."""
        found: Counter[int] = Counter()
        cursor = None
        while True:
            page = self.connection.store.list_items(state, cursor=cursor, limit=500)
            found.update(int(decode_body(one.body).value) for one in page.found)
            if (cursor := page.cursor) is None:
                return found

    def done(self) -> bool:
        """Whether no item of the store is due, leased or held."""
        counts = self.connection.store.counts()
        return sum(counts.total(state) for state in ("due", "leased", "held")) == 0


@pytest.fixture
def crew_of(kafka: TemporaryKafka, name: str, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """A function that makes a crew; see `Crew` for the settings. The crew's processes and server end with the test.
    The server syncs each write, so its crash loses nothing."""
    with temporary_server(fsync="always") as server, ExitStack() as stack:
        yield lambda **settings: Crew(kafka, server, name, tmp_path, stack, **settings)
