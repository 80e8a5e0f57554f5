"""The operations that the package has: fetch, produce and join, on every kind of purgatory."""

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.errors import ConfigError
from wheel_sched.purgatory import Available, Completion, DelayedFetch, DelayedJoin, DelayedProduce


class Log:
    """The log from which a fetch takes items."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def look(self) -> Available:
        return Available(len(self.items), sum(map(len, self.items)))

    def take(self) -> list[bytes]:
        taken, self.items = self.items, []
        return taken


def fetch(log: Log, answers: list[Any], **settings: int) -> DelayedFetch[list[bytes]]:
    return DelayedFetch(log.look, log.take, answers.append, **{"max_wait_ms": 100, **settings})


def test_a_fetch_waits_for_enough_items(world: Any) -> None:
    """A fetch for three items waits while one is missing. The third item completes the fetch, which takes all three."""
    log, answers = Log(), []
    operation = fetch(log, answers, min_items=3)
    log.items += [b"a", b"b"]
    assert not world.purgatory.try_complete_else_watch(operation, ["log"])
    log.items.append(b"c")
    assert world.purgatory.check_and_complete("log") == 1
    assert answers == [[b"a", b"b", b"c"]]


def test_a_fetch_waits_for_enough_bytes_or_items_whichever_comes_first(world: Any) -> None:
    """A fetch ends when there are `min_size` bytes, as for Kafka's fetch.min.bytes, or `min_items` items."""
    log, answers = Log(), []
    big = fetch(log, answers, min_items=100, min_size=10)
    world.purgatory.try_complete_else_watch(big, ["log"])
    log.items.append(b"123456789")
    assert world.purgatory.check_and_complete("log") == 0
    log.items.append(b"0")
    assert world.purgatory.check_and_complete("log") == 1
    many = fetch(log, answers, min_items=2, min_size=1000)
    log.items += [b"", b""]
    assert world.purgatory.try_complete_else_watch(many, ["log"])
    assert answers == [[b"123456789", b"0"], [b"", b""]]


def test_a_fetch_out_of_time_looks_again_and_takes_what_there_is(world: Any) -> None:
    """At its timeout a fetch takes all items, even if no check followed their arrival. Without items it returns an
    empty list."""
    log, answers = Log(), []
    world.purgatory.try_complete_else_watch(fetch(log, answers, min_items=5), ["log"])
    log.items += [b"a", b"b"]
    world.advance(102)
    assert answers == [[b"a", b"b"]]
    world.purgatory.try_complete_else_watch(fetch(log, answers), ["log"])
    world.advance(102)
    assert answers[1] == []


def test_a_forced_fetch_looks_again(world: Any) -> None:
    """A fetch that is forced, as in a shutdown, takes the items that the log has."""
    log, answers = Log(), []
    operation = fetch(log, answers, min_items=5)
    world.purgatory.try_complete_else_watch(operation, ["log"])
    log.items.append(b"a")
    assert operation.force_complete()
    assert (answers, operation.completion) == ([[b"a"]], Completion.FORCED)


@pytest.mark.parametrize("wrong", [{"min_items": -1}, {"min_size": 1.5}, {"min_items": 0}])
def test_a_fetch_for_nothing_is_refused(wrong: Any) -> None:
    """A fetch must wait for a positive whole number of items or bytes. The error lists every problem."""
    with pytest.raises(ConfigError, match="min_"):
        fetch(Log(), [], **wrong)


def test_a_produce_waits_for_every_partition(world: Any) -> None:
    """A produce ends when each partition has answered. An error is the answer of one partition and changes no other
    answer."""
    answers: list[Any] = []
    operation = DelayedProduce[str, Any](["p0", "p1", "p2"], answers.append, timeout_ms=1000)
    world.purgatory.try_complete_else_watch(operation, ["p0", "p1", "p2"])
    error = OSError("not enough replicas")
    for partition, answer in {"p1": error, "p0": 17}.items():
        assert operation.acknowledge(partition, answer)
        assert world.purgatory.check_and_complete(partition) == 0
    assert operation.missing == {"p2"}
    assert operation.acknowledge("p2", 4)
    assert world.purgatory.check_and_complete("p2") == 1
    assert answers == [{"p0": 17, "p1": error, "p2": 4}]


def test_a_produce_out_of_time_tells_who_has_not_answered(world: Any) -> None:
    """At the timeout a missing answer is None. `acknowledge` refuses late and repeated answers, and unknown
    partitions."""
    answers: list[Any] = []
    operation = DelayedProduce[str, int](["p0", "p1"], answers.append, timeout_ms=50)
    world.purgatory.try_complete_else_watch(operation, ["p0", "p1"])
    assert operation.acknowledge("p0", 1)
    assert not operation.acknowledge("p0", 2)
    assert not operation.acknowledge("p9", 2)
    world.advance(52)
    assert not operation.acknowledge("p1", 3)
    assert answers == [{"p0": 1, "p1": None}]
    assert operation.completion is Completion.EXPIRED


def test_a_produce_for_nobody_is_complete(world: Any) -> None:
    """A produce without partitions is complete at once, with an empty result."""
    answers: list[Any] = []
    assert world.purgatory.try_complete_else_watch(DelayedProduce((), answers.append, timeout_ms=50), ["p"])
    assert answers == [{}]


def test_a_join_waits_for_all_known_members(world: Any) -> None:
    """A join ends when all expected members have arrived. Its result lists all members in order of arrival, also a
    member that was not expected."""
    heard: list[Any] = []
    operation = DelayedJoin(["a", "b"], heard.append, timeout_ms=1000)
    world.purgatory.try_complete_else_watch(operation, ["group"])
    for member in ("b", "stranger", "b"):
        assert operation.arrive(member)
        assert world.purgatory.check_and_complete("group") == 0
    assert operation.arrive("a")
    assert world.purgatory.check_and_complete("group") == 1
    assert (heard[0].members, heard[0].missing) == (("b", "stranger", "a"), frozenset())


def test_a_join_out_of_time_goes_on_without_the_missing(world: Any) -> None:
    """At its timeout a join reports the members that arrived and those that are missing. Later calls return False."""
    heard: list[Any] = []
    operation = DelayedJoin(["a", "b"], heard.append, timeout_ms=50)
    world.purgatory.try_complete_else_watch(operation, ["group"])
    operation.arrive("a")
    world.advance(52)
    assert (heard[0].members, heard[0].missing) == (("a",), frozenset({"b"}))
    assert (operation.arrive("b"), operation.expect("c"), operation.dismiss("a")) == (False, False, False)
    assert heard[0].members == ("a",)


def test_who_is_expected_may_change(world: Any) -> None:
    """While a join waits, `expect` adds an expected member, and `dismiss` removes one."""
    heard: list[Any] = []
    operation = DelayedJoin(["a"], heard.append, timeout_ms=1000)
    world.purgatory.try_complete_else_watch(operation, ["group"])
    assert operation.expect("b")
    operation.arrive("a")
    assert operation.expect("a")  # "a" has already arrived
    assert world.purgatory.check_and_complete("group") == 0
    assert operation.dismiss("b")
    assert world.purgatory.check_and_complete("group") == 1
    assert heard[0].members == ("a",)
