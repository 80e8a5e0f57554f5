"""The session's broker (`kafka`) and names on it (`name`) are the suite's own; see tests/conftest.py.

A crew is a group whose services and consumers are processes. Whom a blow hits is chosen by what is known of him: he is
stopped first, then looked at, and killed only when he has what the blow is for in his hands; else he goes on.
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
    """A group's rebalance takes seconds."""
    monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)


@pytest.fixture
def committed(kafka: TemporaryKafka) -> Callable[[str], list[Message]]:
    """All that a reader of committed records finds in a topic now."""
    return lambda topic: _found(kafka.bootstrap, topic, "read_committed")


@pytest.fixture
def uncommitted(kafka: TemporaryKafka) -> Callable[[str], list[Message]]:
    """All that any reader finds in a topic now, also what was aborted."""
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
        assert time.monotonic() < until_s, f"{topic}: {left} partitions have not come to their end"
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
    told: Callable[[], object] = lambda: "",
    *,
    despite: type[Exception] | tuple[()] = (),
    pause_s: float = 0.02,
) -> None:
    """Wait for what other threads and processes do.

    Args:
        condition: what is waited for; asked again and again.
        told: what is known when it does not come.
        despite: what `condition` may raise for a while.
        pause_s: between two questions, in seconds.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except despite:
            pass
        assert time.monotonic() < until_s, f"waited in vain: {told()}"
        time.sleep(pause_s)  # others' doing; there is nothing to wait on


class Until(Protocol):
    """`until`, as tests have it."""

    def __call__(
        self,
        condition: Callable[[], bool],
        told: Callable[[], object] = ...,
        *,
        despite: type[Exception] | tuple[()] = ...,
        pause_s: float = ...,
    ) -> None: ...


@pytest.fixture(name="until")
def _until() -> Until:
    """The function of that name; how many messages come to a reader is `conformance.receive`'s to wait for."""
    return until


class Member:
    """A process of a group; what it tells of itself is at most a few hundredths of a second old."""

    def __init__(self, script: str, place: Path, settings: dict[str, Any]) -> None:
        self.script = script
        files = {what: str(place.with_suffix(f".{what}")) for what in ("told", "log", "handled")}
        self.told, self.log = Path(files["told"]), Path(files["log"])
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), json.dumps({**settings, **files})]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)

    def __repr__(self) -> str:
        return f"<{self.script} {self.told.stem} {self.process.poll()} {self.facts()}>"

    def facts(self) -> dict[str, Any]:
        """What it told last; nothing before it is up."""
        try:
            facts: dict[str, Any] = json.loads(self.told.read_text())
        except FileNotFoundError:
            return {}
        return facts

    @property
    def parts(self) -> set[int]:
        """The partitions of the retry topic that it takes in."""
        return {*self.facts().get("parts", ())}

    def said(self) -> str:
        """Its log, and what librdkafka says."""
        return self.log.read_text() if self.log.exists() else ""

    def up(self) -> Member:
        """Wait until it runs."""
        until(lambda: self.told.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        return self

    def freeze(self) -> None:
        """It stands still from here on, whatever it is at."""
        self.process.send_signal(signal.SIGSTOP)
        happened = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert happened is not None
        assert happened.si_code == os.CLD_STOPPED, f"it has ended by itself: {self.said()}"

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def killed_if(self, hit: Callable[[], bool]) -> bool:
        """Kill it if it is hit while it stands still; else it goes on."""
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
        """It ends in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.said()

    def close(self) -> None:
        """Whatever became of it. Idempotent."""
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Shard(NamedTuple):
    """What the store knows of a shard at one moment: who owns it, until when, and the numbers of the open claims."""

    owner: str
    claims: frozenset[int]


class Crew:
    """A group over the session's broker and a server of its own, and its processes."""

    until = staticmethod(partial(until, despite=StoreError))  # its server may be being restarted

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
        self.home: Connection = connect(server.url, broker=self.broker, namespace=name, shards=shards)
        stack.callback(self.home.close)
        self._redis = stack.enter_context(redis.Redis.from_url(server.url))
        for topic in (self.topic, retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            self.broker.create_topic(topic)
        self._topic_id = self.broker.topic_id(retry_topic_of(name))
        self._number = 0

    # -- its processes

    def start_service(self, **settings: Any) -> Member:
        """One more that takes in and dispatches."""
        return self._start("service", self.services, {**self._service, **settings})

    def start_consumer(self, **settings: Any) -> Member:
        """One more that handles, three in ten in vain; see the script."""
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
        """Kill one of `kind` that is hit: what that means is true while he stands still, so also when he dies.

        Args:
            kind: of whom one is to die; he is taken out.
            seems: whether it is worth while to stop him; cheap.
            hit: whether he has in his hands what the blow is for.
            feed: called when there is nothing to be done for anybody, ever more rarely.
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
            assert time.monotonic() < until_s, f"nobody to hit: {kind} {self.home.store.counts()}"
            time.sleep(0.001)  # other processes' doing; there is nothing to wait on

    def restart_server(self) -> None:
        """The store's server is killed, and is back with what its log holds."""
        self.server.sigkill()
        self.server.restart()
        self.until(lambda: self.home.store.now_ms() > 0)

    # -- what is known of it

    def shard(self, number: int) -> Shard:
        """A shard of the store at one moment."""
        both = self._redis.pipeline()
        both.hget(f"{{{self.name}:{number}}}:meta", "owner")
        both.hvals(f"{{{self.name}:{number}}}:claim")
        owner, claims = both.execute()
        return Shard((owner or b"").decode(), frozenset(int(one.lstrip(b"!").split(b":")[0]) for one in claims))

    def has_claims(self, member: Member) -> bool:
        """Whether a service owns a shard with claims that are open."""
        owner = member.facts().get("owner")
        found = [self.shard(number) for number in range(self._shards)]
        return any(one.claims and one.owner == owner for one in found)

    def busy(self) -> bool:
        """Whether something is on its way, or will be within a second."""
        counts = self.home.store.counts()
        soon_ms = counts.now_us // 1_000 + 1_000
        return counts.total("leased") > 0 or (counts.due_head_ms is not None and counts.due_head_ms <= soon_ms)

    def ends(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """The ends of a topic's partitions; `committed`: up to where no transaction is open."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, number) for number in range(self.partitions)]
        return {number: end for (_, number), end in self.broker.topology.ends(places, committed=committed).items()}

    def positions(self) -> dict[int, int]:
        """How far the partitions of the retry topic are taken in, by the store's word."""
        numbers = range(self.partitions)
        sources = [source_of(intake_group_of(self.name), self._topic_id, number) for number in numbers]
        return {
            number: found or 0
            for number, found in zip(numbers, LogIntake(self.home.store).positions(sources), strict=True)
        }

    def lag(self, parts: Iterable[int]) -> int:
        """How far the store is behind the ends of these partitions of the retry topic; marks of transactions count."""
        positions, ends = self.positions(), self.ends(retry_topic_of(self.name))
        return sum(ends[number] - positions[number] for number in parts)

    def grows(self, parts: Iterable[int], feed: Callable[[], None]) -> bool:
        """Whether records come to one of these partitions of the retry topic, soon after `feed`."""
        topic = retry_topic_of(self.name)
        before, until_s = self.ends(topic), time.monotonic() + 1.5  # half a session: who is stopped stays a member
        feed()
        while time.monotonic() < until_s:
            ends = self.ends(topic)
            if any(ends[number] - before[number] >= 2 for number in parts):  # one may be the mark of a transaction
                return True
            time.sleep(0.02)  # other processes' doing; there is nothing to wait on
        return False

    def stored(self, state: State) -> Counter[int]:
        """How often each message is in the store, by its number."""
        found: Counter[int] = Counter()
        cursor = None
        while True:
            page = self.home.store.list_items(state, cursor=cursor, limit=500)
            found.update(int(decode_body(one.body).value) for one in page.found)
            if (cursor := page.cursor) is None:
                return found

    def done(self) -> bool:
        """Whether nothing waits any more, in the retry topic or in the store."""
        counts = self.home.store.counts()
        return sum(counts.total(state) for state in ("due", "leased", "held")) == 0


@pytest.fixture
def crew_of(kafka: TemporaryKafka, name: str, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Make the crew; see `Crew` for the settings. Its processes and its server are gone at the end."""
    with temporary_server() as server, ExitStack() as stack:
        yield lambda **settings: Crew(kafka, server, name, tmp_path, stack, **settings)
