"""Random histories of two ordering keys, compared with a model that is a plain list."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wheel_sched.store import DelayStore, Item, Outcome
from wheel_sched.store.core.settle import Dead, Done
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, route_of, scope_of
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect

if TYPE_CHECKING:
    import redis

SCOPE = scope_of("g", "t")
CAP = 3
_numbers = itertools.count()

# arrive: the next message of the key is read; again: an earlier one is read a second time, after a crash
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "arrive",
                "arrive",
                "arrive",
                "again",
                "succeed",
                "give up",
                "die in the store",
                "cancel",
                "let out",
                "pause",
            ]
        ),
        st.integers(0, 1),  # which key
        st.integers(0, 5),  # which message
    ),
    max_size=40,
)


class Key:
    """The model of one key: its head, the messages parked behind the head, and the messages that have ended."""

    def __init__(self) -> None:
        self.head: str | None = None
        self.kind = "c"
        self.parking: list[str] = []
        self.ended: set[str] = set()
        self.known: set[str] = set()  # messages that are in the store, in any state
        self.seen = 0

    def follow(self) -> None:
        self.head = self.parking.pop(0) if self.parking else None
        self.kind = "r"


class History:
    """One history on one store."""

    def __init__(self, store: DelayStore) -> None:
        self.store = store
        self.ordered = OrderedKeys(store)
        self.owner = Owner(SCOPE, "me", self.ordered.acquire(SCOPE, "me", 60_000).epoch)
        self.keys = [Key(), Key()]
        self.names = [lock_of(SCOPE, b"%d" % number) for number in range(2)]
        self.paused = False

    def item(self, place: int, base: str, due_ms: int | None = None) -> Item:
        lock = self.names[place]
        return Item(f"{base}.0", due_ms, b"", "t", (ref_of(lock),), route_of(lock))

    def park(self, place: int, base: str) -> Outcome:
        return self.ordered.park(self.owner, CAP, [(self.names[place], base, True, self.item(place, base))])[0]

    def step(self, action: str, place: int, number: int) -> None:
        key, lock = self.keys[place], self.names[place]
        if action == "arrive":
            self.arrive(key, place, f"{place}m{key.seen}")
            key.seen += 1
        elif action == "again" and key.seen:
            base = f"{place}m{number % key.seen}"
            if key.head is None and base not in key.ended | key.known:
                return  # a message whose end the store has not kept would be handled as a new one
            self.arrive(key, place, base)
        elif action in ("succeed", "give up") and key.head is not None:
            passed = self.ordered.succeeded if action == "succeed" else self.ordered.given_up
            head = key.head
            assert passed([(lock, head), (lock, head)]) == [Outcome.DONE, Outcome.ABSENT]
            key.ended.add(head)
            key.follow()
        elif action in ("die in the store", "cancel") and key.head is not None and key.head in key.known:
            self.end(key, key.head, action)
        elif action == "let out" and key.parking:
            base = key.parking.pop(number % len(key.parking))
            assert self.store.release([f"{base}.0"], 0, route=route_of(lock)) == [Outcome.DONE]
        elif action == "pause":
            self.paused = not self.paused
            (self.store.pause if self.paused else self.store.resume)("t")

    def arrive(self, key: Key, place: int, base: str) -> None:
        full = self.length(place) >= CAP
        answer = self.park(place, base)
        if base in key.ended:
            assert answer is Outcome.DUPLICATE
        elif key.head == base:
            assert answer is (Outcome.DUPLICATE if key.kind == "r" else Outcome.DONE)
        elif base in key.known:
            assert answer is Outcome.DUPLICATE
        elif key.head is None:
            assert answer is Outcome.ABSENT
            # the message is handled and fails: its key is closed, and its retry waits in the store
            assert self.ordered.close(self.owner, [(self.names[place], base, True, "k")]) == [Outcome.DONE]
            self.store.schedule([self.item(place, base, 0)])
            key.head, key.kind = base, "c"
            key.known.add(base)
        elif full:
            assert answer is Outcome.WRONG_STATE
        else:
            assert answer is Outcome.HELD
            key.parking.append(base)
            key.known.add(base)

    def length(self, place: int) -> int:
        """How many parked messages of the key the store counts, including those that were released by hand before
        their turn."""
        return next((key.parked for key in self.ordered.closed(SCOPE) if key.lock == self.names[place]), 0)

    def end(self, key: Key, base: str, action: str) -> None:
        found = self.store.get([f"{base}.0"], anywhere=True)[0]
        if found is None or found.state != "due" or self.paused:
            return
        if action == "cancel":
            assert self.store.cancel([found.id], route=found.route) == [Outcome.DONE]
            key.known.discard(base)
        else:
            claim = self.store.claim(100)
            dead = [Dead(one.id, "test") for one in claim.items if one.id == found.id]
            rest = [Done(one.id) for one in claim.items if one.id != found.id]
            for one in rest:
                for other in self.keys:
                    other.known.discard(one.id[:-2])
            self.store.settle(claim, [*rest, *dead])
        key.ended.add(base)
        key.follow()

    def check(self) -> None:
        """Check that the store has the heads of the model, and that every parked message is held in order."""
        heads = {key.lock: key.head for key in self.ordered.closed(SCOPE)}
        wanted = {name: key.head for name, key in zip(self.names, self.keys, strict=True) if key.head is not None}
        assert heads == wanted
        held = [found.id[:-2] for found in self.store.list_items("held").found if found.reason.startswith("ordered")]
        for place, key in enumerate(self.keys):
            assert [base for base in held if base.startswith(f"{place}m")] == key.parking
        counts = self.store.counts()
        assert counts.total("held") == counts.sizes["held"]
        assert counts.total("due") == counts.sizes["due"]


def run(store: DelayStore, history: list[tuple[str, int, int]]) -> None:
    played = History(store)
    for action, place, number in history:
        played.step(action, place, number)
        played.check()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_memory_follows_the_model(history: list[tuple[str, int, int]]) -> None:
    """In the memory store as in the model, a key has one head, its messages are parked in order, and none is lost."""
    run(DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: 1_000_000).open(), history)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Callable[[], DelayStore]:
    client: redis.Redis = request.getfixturevalue(request.param)

    def fresh() -> DelayStore:
        backend = RedisBackend(client, Dialect(f"ordering{next(_numbers)}"))
        return DelayStore(backend, test_clock=lambda: 1_000_000).open()

    return fresh


@pytest.mark.parametrize("served", ["shared_fake"], indirect=True)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_the_script_follows_the_model(served: Callable[[], DelayStore], history: list[tuple[str, int, int]]) -> None:
    """The store's scripts, on fakeredis, behave as the model."""
    run(served(), history)


@pytest.mark.parametrize("served", [pytest.param("shared_client", marks=pytest.mark.real)], indirect=True)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_the_script_follows_the_model_on_a_server(
    served: Callable[[], DelayStore], history: list[tuple[str, int, int]]
) -> None:
    """The store's scripts, on a real server, behave as the model."""
    run(served(), history)
