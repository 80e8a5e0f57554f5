"""The intake of ordered messages from a log: each failure is taken in once, in the shard of its key, even if a member
dies."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.connection import Connection
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.taken import Taken
from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState, attempts_key, write
from retry_topic.policy import Fixed, PolicySet, RetryPolicy
from wheel_sched.store import AttemptCounts, DelayStore, Done, Item, LogIntake
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.log_intake import LogIntakeInMemory
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, scope_of

SOURCE = "g.retry/0"
SHARDS = 4
HERE = shard_of(SOURCE, SHARDS)
SCOPES = [scope_of("g", "orders", number) for number in range(40)]
BESIDE = next(scope for scope in SCOPES if shard_of(scope, SHARDS) == HERE)
AWAY = next(scope for scope in SCOPES if shard_of(scope, SHARDS) != HERE)
OTHER = next(scope for scope in SCOPES if shard_of(scope, SHARDS) not in (HERE, shard_of(AWAY, SHARDS)))


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Reader:
    """A reader that records the positions to which it is rewound."""

    def __init__(self) -> None:
        self.rewound: list[int | None] = []

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        return None

    def expected(self) -> dict[str, int]:
        return {}

    def done(self, part: LogBatch) -> None:
        """Do nothing."""

    def rewind(self, source: str, position: int | None) -> None:
        self.rewound.append(position)

    def beat(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Died(Exception):
    """Raised in place of a call of the store: the process has died."""


class Bench:
    """A partition of failed messages, some with ordering keys, and the members that take them in. Tests
    set its clock."""

    def __init__(self, shards: int) -> None:
        self.now_ms = 1_000_000
        store = DelayStore(MemoryBackend(shards, clock="test"), shards=shards, test_clock=lambda: self.now_ms).open()
        self.connection, self.reader = Connection(store, Logs()), Reader()
        self.locks = OrderedKeys(store)
        self.records: list[Message] = []

    def failed(self, name: str, scope: str | None = None, attempt: int = 1) -> None:
        """Append one record: a failure of a message. With a scope, the message has an ordering key named
        like itself."""
        key_lock = None if scope is None else lock_of(scope, name.encode())
        state = RetryState(id=name, attempt=attempt, original_topic="orders", error_class="E", key_lock=key_lock)
        source = Source("g.retry", 0, str(len(self.records)), 1)
        self.records.append(Message("g.retry", b"v", b"k", write((), state), source))

    def intake(self) -> IntakeFromLog:
        policy = RetryPolicy(delay=Fixed(base_ms=1_000), max_attempts=4)
        return IntakeFromLog(self.connection, "g", PolicySet(policy), rng=random.Random(1))

    def take(self, intake: IntakeFromLog, end: int) -> list[Taken]:
        """Take in a batch from the stored position up to `end`."""
        return self.take_from(intake, self.position(), end)

    def take_from(self, intake: IntakeFromLog, start: int | None, end: int) -> list[Taken]:
        part = LogBatch(SOURCE, start, end, [Delivery(record, None) for record in self.records[start or 0 : end]])
        return intake.take(self.reader, part, lambda call: call())

    def position(self) -> int | None:
        (position,) = LogIntake(self.connection.store).positions([SOURCE])
        return position

    def sent(self) -> list[str]:
        """Claim and settle all waiting messages. Return their ids."""
        self.now_ms += 10_000
        store, gone = self.connection.store, []
        for shard in range(store.shards):
            claim = store.claim(100, shard=shard)
            store.settle(claim, [Done(one.id) for one in claim.items])
            gone += [one.id for one in claim.items]
        return sorted(gone)

    def dead(self) -> list[str]:
        return sorted(found.id for found in self.connection.store.list_items("dead").found)


@pytest.fixture(params=[1, SHARDS])
def bench(request: pytest.FixtureRequest) -> Bench:
    """The bench, once with one shard and once with several."""
    return Bench(request.param)


def dying(bench: Bench, patch: pytest.MonkeyPatch, step: int, *, before: bool) -> None:
    """Let the process die at the call number `step` of the store, before or after the call is executed."""
    left = [step]

    def mortal(name: str) -> None:
        call = getattr(bench.connection.store.backend, name)

        def until_death(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 and before:
                raise Died
            answer = call(*args, **more)
            if left[0] < 0:
                raise Died
            return answer

        patch.setattr(bench.connection.store.backend, name, until_death)

    for name in ("execute", "begin"):
        mortal(name)


def test_each_is_stored_beside_its_key(bench: Bench) -> None:
    """If the ordering key of a message is in the shard of the batch, the message is stored with the batch. Other
    ordered messages are stored before the batch."""
    for name, scope in (("a", BESIDE), ("b", AWAY), ("c", None), ("d", OTHER)):
        bench.failed(name, scope)
    taken = bench.take(bench.intake(), 4)
    assert sorted((one.id, one.duplicate) for one in taken) == [(f"{name}.1", False) for name in "abcd"]
    found = bench.connection.store.get([f"{name}.1" for name in "abd"], anywhere=True)
    assert [one and (one.route, one.refs[0].split(".")[0]) for one in found] == [
        (scope, f"lock:{scope}") for scope in (BESIDE, AWAY, OTHER)
    ]
    assert (bench.position(), bench.sent()) == (4, ["a.1", "b.1", "c.1", "d.1"])


@pytest.mark.parametrize("shards", [1, SHARDS])
@pytest.mark.parametrize("before", [True, False], ids=["not done", "done"])
def test_what_went_out_before_its_record_is_read_again_goes_out_once(
    monkeypatch: pytest.MonkeyPatch, shards: int, before: bool
) -> None:
    """A member dies at any step of the intake. Another member continues at the stored position, and each message is
    sent once."""
    for step in range(100):
        bench = Bench(shards)
        for name, scope in zip("abcdef", [BESIDE, AWAY, None, OTHER, AWAY, OTHER], strict=True):
            bench.failed(name, scope)
        taken = None
        with monkeypatch.context() as patch, contextlib.suppress(Died):
            dying(bench, patch, step, before=before)
            taken = bench.take(bench.intake(), 4)
        gone = bench.sent()
        successor = bench.intake()
        for end in (5, 6):  # so that the successor takes in other batches
            bench.take(successor, end)
        assert sorted(gone + bench.sent()) == [f"{name}.1" for name in "abcdef"], f"death at step {step}"
        assert bench.position() == 6
        keys = [attempts_key(RetryState(id=name), Message("g.retry", b"v", b"k")) for name in "abcdef"]
        counts = AttemptCounts(bench.connection.store).raise_to([(key, 0, 0) for key in keys])
        assert max(counts) == 1
        assert min(counts) == 1 or shards > 1  # several shards: counts may be raised a step later
        if taken is not None:
            return  # the intake has no more steps
    raise AssertionError("the intake did not end")


def test_a_member_that_lost_its_partition_stores_nothing_of_it(bench: Bench) -> None:
    """A member has lost its partition without knowing it, and takes in a batch. Nothing of the batch is stored, in any
    shard."""
    for name, scope in zip("abcdef", [AWAY, OTHER] * 3, strict=True):
        bench.failed(name, scope)
    zombie, other = bench.intake(), bench.intake()
    bench.take(zombie, 2)
    bench.take(other, 4)
    gone = bench.sent()
    assert bench.take_from(zombie, 2, 5) == []
    assert (bench.reader.rewound, bench.position()) == ([4], 4)
    bench.take(other, 6)
    assert sorted(gone + bench.sent()) == [f"{name}.1" for name in "abcdef"]


@pytest.mark.parametrize("shards", [1, SHARDS])
@pytest.mark.parametrize("before", [True, False], ids=["not done", "done"])
def test_a_dead_head_lets_the_next_follow_in_the_step_that_buries_it(
    monkeypatch: pytest.MonkeyPatch, shards: int, before: bool
) -> None:
    """The first failed message of a key becomes a dead letter, and in the same step the next message of the key becomes
    the head. So the death of the process at any step leaves no key locked for ever."""
    key_lock = lock_of(AWAY, b"a")
    for step in range(100):
        bench = Bench(shards)
        owner = Owner(AWAY, "me", bench.locks.acquire(AWAY, "me", 60_000).epoch)
        bench.locks.close(owner, [(key_lock, "a", True, "a")])
        bench.locks.park(
            owner, 10, [(key_lock, "b", True, Item("b.0", None, b"", "orders", (ref_of(key_lock),), AWAY))]
        )
        bench.failed("a", AWAY, attempt=4)
        bench.failed("c")
        taken = None
        with monkeypatch.context() as patch, contextlib.suppress(Died):
            dying(bench, patch, step, before=before)
            taken = bench.take(bench.intake(), 1)
        (key,) = bench.locks.closed()
        assert (key.head == "b") == (bench.dead() == ["a.4"]), f"death at step {step}"
        bench.take(bench.intake(), 2)
        (key,) = bench.locks.closed()
        assert (key.head, bench.dead(), bench.sent()) == ("b", ["a.4"], ["b.0", "c.1"])
        if taken is not None:
            return  # the intake has no more steps
    raise AssertionError("the intake did not end")


def test_another_message_s_id_is_left_to_it(bench: Bench) -> None:
    """A record whose id belongs to another stored message gets a new id, and its ordering key is unlocked."""
    key_lock = lock_of(AWAY, b"a")
    owner = Owner(AWAY, "me", bench.locks.acquire(AWAY, "me", 60_000).epoch)
    bench.locks.close(owner, [(key_lock, "a", True, "a")])
    bench.connection.store.schedule([Item("a.1", bench.now_ms, b"another", "t", route=AWAY)])
    bench.failed("a", AWAY)
    (taken,) = bench.take(bench.intake(), 1)
    assert (taken.duplicate, taken.id != "a.1", list(bench.locks.closed())) == (False, True, [])
    assert bench.sent() == sorted(["a.1", taken.id])


def test_no_header_lowers_a_count_of_an_ordered_message(bench: Bench) -> None:
    """The store's attempt count holds for ordered messages too, whatever the header says."""
    bench.failed("a", AWAY, attempt=2)
    bench.failed("a", AWAY, attempt=1)
    intake = bench.intake()
    bench.take(intake, 1)
    assert bench.sent() == ["a.2"]
    bench.take(intake, 2)
    assert bench.sent() == ["a.3"]


def test_a_shard_that_fell_back_alone_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """One shard has lost its last writes. The log says so, and later records are not taken in twice."""
    bench = Bench(SHARDS)
    for name in "abc":
        bench.failed(name, AWAY)
    intake = bench.intake()
    bench.take(intake, 1)
    bench.take(intake, 2)
    backend = bench.connection.store.backend
    assert isinstance(backend, MemoryBackend)
    backend.shards[shard_of(AWAY, SHARDS)].room(LogIntakeInMemory).positions[SOURCE] = 1
    bench.take(intake, 3)
    assert "knows of g.retry/0 up to 1, not 2" in caplog.text
    assert bench.sent() == ["a.1", "b.1", "c.1"]


class History:
    """Messages that fail up to four times, and two members that take in their failures.

    At random, a member dies, takes in an old batch, or is overtaken by the other member between two steps.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(self.random.choice([1, SHARDS]))
        self.scopes = {f"m{number}": self.random.choice([AWAY, OTHER, BESIDE, AWAY, None]) for number in range(25)}
        self.attempts = dict.fromkeys(self.scopes, 1)
        self.handled = list(self.scopes)  # the messages whose handlers will fail next
        self.failures: set[str] = set()
        self.sent: Counter[str] = Counter()
        self.members = [self.bench.intake(), self.bench.intake()]

    def fail(self) -> None:
        """A handler fails: append one record."""
        if self.handled:
            name = self.handled.pop(self.random.randrange(len(self.handled)))
            attempt = self.attempts[name]
            self.bench.failed(name, self.scopes[name], attempt)
            self.failures.add(f"{name}.{attempt}")
            self.attempts[name] = attempt + 1

    def send(self) -> None:
        """Send all waiting messages to their handlers."""
        for item_id in self.bench.sent():
            self.sent[item_id] += 1
            name, _, attempt = item_id.rpartition(".")
            if self.attempts[name] == int(attempt) + 1:
                self.handled.append(name)

    def take(self) -> None:
        """Let a member take in a batch. At random the batch is an old one, the member dies, or the other member takes
        in records meanwhile."""
        place, bench = self.random.randrange(2), self.bench
        position = bench.position()
        start = position
        if position and self.random.random() < 0.3:
            start = self.random.randrange(max(1, position - 6), position + 1)
        left = len(bench.records) - (start or 0)
        if left < 1:
            return
        end = (start or 0) + self.random.randrange(1, min(left, 12) + 1)
        with pytest.MonkeyPatch.context() as patch:
            happens = self.random.choice(["nothing", "death", "death", "meanwhile"])
            if happens == "death":
                dying(bench, patch, self.random.randrange(14), before=self.random.random() < 0.5)
            elif happens == "meanwhile":
                self.meanwhile(patch, self.random.randrange(10), self.members[1 - place])
            try:
                bench.take_from(self.members[place], start, end)
            except Died:
                self.members[place] = bench.intake()

    def meanwhile(self, patch: pytest.MonkeyPatch, step: int, other: IntakeFromLog) -> None:
        """Let the other member take in records between two steps of the first one."""
        bench, left = self.bench, [step]
        execute = bench.connection.store.backend.execute

        def interrupted(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == -1 and (bench.position() or 0) < len(bench.records):
                bench.take(other, min(len(bench.records), (bench.position() or 0) + 5))
                if left[0] % 2:
                    self.send()
            return execute(*args, **more)

        patch.setattr(bench.connection.store.backend, "execute", interrupted)

    def end(self) -> None:
        """Take in and send everything that is left."""
        last = self.bench.intake()
        self.send()
        while self.handled or (self.bench.position() or 0) < len(self.bench.records):
            self.fail()
            self.bench.take(last, min(len(self.bench.records), (self.bench.position() or 0) + 3))
            self.send()


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)], ids=str)
def test_each_failure_is_taken_in_once_whatever_happens(seeds: range) -> None:
    """Each message is sent once after each of its first three failures and is a dead letter after the fourth."""
    for seed in seeds:
        history = History(seed)
        for _ in range(60):
            for _ in range(history.random.randrange(4)):
                history.fail()
            if history.random.random() < 0.3:
                history.send()
            history.take()
        history.end()
        fourth = {item_id for item_id in history.failures if item_id.endswith(".4")}
        assert len(fourth) == 25
        assert history.sent == Counter(history.failures - fourth), f"seed {seed}"
        assert history.bench.dead() == sorted(fourth), f"seed {seed}"
