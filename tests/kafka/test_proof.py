"""What a reader of committed records sees when services and consumers are killed.

A process is killed only while it has work in progress; see `Crew.strike` in conftest.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from retry_topic import Message, RetryPolicy, RetryService
from retry_topic.message.headers import read
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed, Rate
from wheel_sched.store.ordering import OrderedKeys

if TYPE_CHECKING:
    from conftest import Crew, Member

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

CAP = 4


class Course(NamedTuple):
    """The sizes of a test run: the number of messages and of their keys, how many processes of each kind are killed,
    and how often further members join and leave."""

    ordering: str
    count: int
    keys: int
    owners: int = 12
    intakes: int = 8
    consumers: int = 4
    waves: int = 2
    protocol: str = "classic"


def fails(number: int, attempt: int) -> bool:
    """Whether the handler fails at an attempt: three of ten attempts fail, always the same ones, as in
    processes/consumer.py."""
    return zlib.crc32(b"%d:%d" % (number, attempt)) % 10 < 3


def last_of(number: int) -> int:
    """The last attempt of a message."""
    return next((attempt for attempt in range(1, CAP) if not fails(number, attempt)), CAP)


class Proof:
    """Publishes messages for a crew, kills the crew's processes, and checks the result."""

    def __init__(self, crew: Crew, course: Course) -> None:
        self.crew, self.course = crew, course
        self.count, self.keys = course.count, course.keys
        self.consumer = {"concurrency": 100, "idle_ms": 3_000, "crash_cap": 1_000, "ordering": course.ordering}
        self.published = 0
        self.blows: Counter[str] = Counter()

    def feed(self, count: int = 250) -> None:
        """Publish this number of further messages, if there are any left."""
        numbers = range(self.published, min(self.count, self.published + count))
        messages = [Message(self.crew.topic, b"%d" % n, b"%d" % (n % self.keys)) for n in numbers]
        assert not any(self.crew.broker.publish(messages))
        self.published = numbers.stop

    def feed_blow(self, count: int = 250) -> None:
        """Publish messages, so that a process gets work and can be killed. If all are published, add new messages,
        equally many of each key."""
        if self.published == self.count:
            self.count += self.keys * -(-count // self.keys)
        self.feed(count)

    def kill_owner(self) -> None:
        """Kill a service that owns a shard with open claims, and start another."""
        crew = self.crew
        crew.strike(crew.services, crew.has_claims, crew.has_claims, self.feed_blow)
        self.blows["owner"] += 1
        crew.start_service().up()

    def kill_intake(self) -> None:
        """Kill a service that has partitions, has taken records in and has more records to read. Start another one."""
        crew = self.crew

        def working(member: Member) -> bool:
            return bool(member.parts) and member.facts()["taken"] > 0

        def hit(member: Member) -> bool:
            return working(member) and crew.grows(member.parts, lambda: self.feed_blow(100))

        crew.strike(crew.services, working, hit, self.feed_blow)
        self.blows["intake"] += 1
        crew.start_service().up()

    def kill_consumer(self) -> None:
        """Kill a consumer that has partitions and handles a message. Start another one."""
        crew = self.crew

        def handling(member: Member) -> bool:
            return bool(member.facts().get("places"))

        crew.strike(crew.consumers, handling, handling, self.feed_blow)
        self.blows["consumer"] += 1
        crew.start_consumer(**self.consumer).up()

    def storm(self) -> None:
        """In each wave, let members join, wait until they have partitions, and let them leave or kill them."""
        for _ in range(self.course.waves):
            self._wave([*self.crew.services])
        self.crew.until(lambda: self._shared(self.crew.services), lambda: self.crew.services)

    def _wave(self, standing: list[Member]) -> None:
        crew = self.crew
        crew.until(lambda: self._shared(standing), lambda: crew.services)
        self.feed(500)
        before = [member.parts for member in standing]
        come = [crew.start_service() for _ in range(3)]
        consumer = crew.start_consumer(**self.consumer)
        crew.until(lambda: self._shared(crew.services), lambda: crew.services)
        crew.until(lambda: bool(consumer.facts().get("places")), lambda: crew.consumers)
        assert before != [member.parts for member in standing], "no service gave up a partition"
        self.blows["joined"] += len(come)
        come.pop().leave()
        for member in [*come, consumer]:
            member.kill()
        for kind in (crew.services, crew.consumers):
            kind[:] = [member for member in kind if member.process.returncode is None]

    def _shared(self, members: list[Member]) -> bool:
        """Whether each member has some partitions, and together they have all."""
        parts = [member.parts for member in members]
        return all(parts) and sum(map(len, parts)) == self.crew.partitions == len(set().union(*parts))

    # -- what became of them

    def expected(self) -> set[tuple[int, int]]:
        """Each handler call that has to happen, as message number and attempt."""
        return {(number, attempt) for number in range(self.count) for attempt in range(1, last_of(number) + 1)}

    def dead(self) -> set[int]:
        return {number for number in range(self.count) if fails(number, last_of(number))}

    def events(self) -> list[tuple[int, str, int, int]]:
        """When the handlers began and ended, in order of time: time in ns, "b" or "e", message number, attempt."""
        found = []
        for file in self.crew.folder.glob("*.handled"):
            for line in file.read_text().splitlines():
                what, number, attempt, ns = line.split()
                found.append((int(ns), what, int(number), int(attempt)))
        return sorted(found)

    def handled(self) -> set[tuple[int, int]]:
        return {(number, attempt) for _, what, number, attempt in self.events() if what == "e"}

    def finish(self) -> None:
        """Wait until all work is done, kill all processes, and check that each attempt was handled."""
        crew = self.crew
        expected, dead = self.expected(), self.dead()
        crew.until(
            lambda: len(self.handled()) >= len(expected),
            lambda: (len(self.handled()), len(expected), crew.connection.store.counts(), crew.services, crew.consumers),
            pause_s=0.5,
        )
        crew.until(crew.done, crew.connection.store.counts)
        crew.until(lambda: crew.connection.store.counts().total("dead") >= len(dead), crew.connection.store.counts)
        for member in [*crew.services, *crew.consumers]:
            member.kill()
        assert self.handled() == expected

    def judge_letters(self, committed: Callable[[str], list[Message]]) -> None:
        """Check that the dead letters are the messages that failed at every attempt: each once in the store, and in the
        group's dead topic."""
        assert self.crew.stored("dead") == Counter(self.dead())
        dead_values = {int(message.value) for message in committed(dead_topic_of(self.crew.name))}
        assert dead_values == self.dead()

    def judge_redeliveries(self, committed: Callable[[str], list[Message]]) -> None:
        """Check that each redelivery exists exactly once, and that no message has more attempts than allowed. In an
        ordered run, messages that were parked at their first attempt are redelivered too."""
        redelivered = Counter(
            (int(message.value), read(message.headers).attempt + 1)
            for message in committed(redelivery_topic_of(self.crew.name))
        )
        assert [key for key, times in redelivered.items() if times != 1] == []
        assert {key for key in redelivered if key[1] > 1} == {key for key in self.expected() if key[1] > 1}
        if self.course.ordering == "none":
            assert min(attempt for _, attempt in redelivered) > 1

    def judge_order(self) -> None:
        """Check that no handler begins a message before the previous message of its key has ended for good."""
        through: dict[int, int] = defaultdict(int)
        for _, what, number, attempt in self.events():
            place, key = divmod(number, self.keys)
            if what == "b":
                assert place <= through[key], f"{number} began when only {through[key]} messages of its key had ended"
            elif place == through[key] and attempt == last_of(number):
                through[key] += 1
        assert set(through.values()) == {self.count // self.keys}


COURSES = {
    "order of keys": Course("key", 20_000, 1_000),
    "any order": Course("none", 4_000, 100, owners=4, intakes=4, consumers=2, waves=1),
    "KIP-848": Course("none", 4_000, 100, owners=4, intakes=4, consumers=2, waves=1, protocol="consumer"),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_killed_processes_lose_and_double_nothing(
    crew_of: Callable[..., Crew], committed: Callable[[str], list[Message]], course: Course
) -> None:
    """Messages of which three in ten fail are handled by a crew whose services and consumers are killed at work.

    Members join and leave, and the store's server is killed and restarted. Each redelivery exists exactly once, and no
    message has more attempts than allowed. The run with ordering keys has 20,000 messages and 24 kills, and it also
    checks the order. The two runs without have 4,000 messages and ten kills, one of them under KIP-848. The simulator
    runs the same service, intake and consumer over many more interleavings.
    """
    groups: dict[str, Any] = {}
    if course.protocol != "classic":
        groups = {"client": {}, "broker": {"group_protocol": course.protocol}}
    crew = crew_of(shards=2, dispatcher={"lease_ms": 1_000, "batch": 20}, **groups)
    proof = Proof(crew, course)
    started = [crew.start_service(), crew.start_service()]
    started += [crew.start_consumer(**proof.consumer), crew.start_consumer(**proof.consumer)]
    for member in started:
        member.up()
    blows = [proof.kill_owner] * course.owners + [proof.kill_intake] * course.intakes
    blows += [proof.kill_consumer] * course.consumers
    random.shuffle(blows)
    for number, blow in enumerate(blows):
        if number == len(blows) // 3:
            proof.feed(course.count // 4)
            proof.storm()
        if number == len(blows) * 2 // 3:
            proof.feed(course.count // 4)
            crew.restart_server()
        blow()
    proof.feed(course.count)
    assert proof.blows == {
        "owner": course.owners,
        "intake": course.intakes,
        "consumer": course.consumers,
        "joined": 3 * course.waves,
    }
    proof.finish()
    proof.judge_redeliveries(committed)
    proof.judge_letters(committed)
    if course.ordering == "key":
        proof.judge_order()
        assert OrderedKeys(crew.connection.store).counts([])[0] == 0


def test_a_rate_holds_for_what_goes_out_in_transactions(
    crew_of: Callable[..., Crew], committed: Callable[[str], list[Message]]
) -> None:
    """With a rate and a burst of one, each claim releases at most one message. Each message returns exactly once."""
    crew = crew_of()
    policy = RetryPolicy(delay=Fixed(base_ms=1), rate=Rate(50, "s"), burst=1)
    count, topic = 40, retry_topic_of(crew.name)
    with RetryService(crew.connection, crew.name, policy) as service:
        assert service.hand_over == "transactions"
        crew.broker.publish([Message(topic, b"%d" % n) for n in range(count)])
        crew.until(lambda: crew.connection.store.counts().ever.get(("completed", topic), 0) == count)
        assert service.stats.claims - service.stats.empty_claims >= count
    redelivered = Counter(int(message.value) for message in committed(redelivery_topic_of(crew.name)))
    assert redelivered == Counter(range(count))
