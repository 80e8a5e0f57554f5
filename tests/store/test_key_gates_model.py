"""Any history of an ordered key, against a model of a plain list; memory and script answer alike at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wheel_sched.store import DelayStore, Item, Outcome
from wheel_sched.store.core.settle import Dead, Done
from wheel_sched.store.memory.backend import MemoryBackend
from wheel_sched.store.ordering.face import KeyGates, gate_of, ref_of, route_of, scope_of
from wheel_sched.store.ordering.values import Owner
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.conversation import Dialect

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
    """The model of one key: its head, the line behind it, and what became of the others."""

    def __init__(self) -> None:
        self.head: str | None = None
        self.kind = "c"
        self.line: list[str] = []
        self.ended: set[str] = set()
        self.known: set[str] = set()  # in the store, wherever
        self.seen = 0

    def follow(self) -> None:
        self.head = self.line.pop(0) if self.line else None
        self.kind = "r"


class History:
    """One history on one store."""

    def __init__(self, store: DelayStore) -> None:
        self.store = store
        self.gates = KeyGates(store)
        self.owner = Owner(SCOPE, "me", self.gates.own(SCOPE, "me", 60_000).epoch)
        self.keys = [Key(), Key()]
        self.names = [gate_of(SCOPE, b"%d" % number) for number in range(2)]
        self.paused = False

    def item(self, place: int, stem: str, due_ms: int | None = None) -> Item:
        gate = self.names[place]
        return Item(f"{stem}.0", due_ms, b"", "t", (ref_of(gate),), route_of(gate))

    def park(self, place: int, stem: str) -> Outcome:
        return self.gates.park(self.owner, CAP, [(self.names[place], stem, True, self.item(place, stem))])[0]

    def step(self, action: str, place: int, number: int) -> None:
        key, gate = self.keys[place], self.names[place]
        if action == "arrive":
            self.arrive(key, place, f"{place}m{key.seen}")
            key.seen += 1
        elif action == "again" and key.seen:
            stem = f"{place}m{number % key.seen}"
            if key.head is None and stem not in key.ended | key.known:
                return  # it would be handled as a new one
            self.arrive(key, place, stem)
        elif action in ("succeed", "give up") and key.head is not None:
            passed = self.gates.succeeded if action == "succeed" else self.gates.given_up
            head = key.head
            assert passed([(gate, head), (gate, head)]) == [Outcome.DONE, Outcome.ABSENT]
            key.ended.add(head)
            key.follow()
        elif action in ("die in the store", "cancel") and key.head is not None and key.head in key.known:
            self.end(key, key.head, action)
        elif action == "let out" and key.line:
            stem = key.line.pop(number % len(key.line))
            assert self.store.release([f"{stem}.0"], 0, route=route_of(gate)) == [Outcome.DONE]
        elif action == "pause":
            self.paused = not self.paused
            (self.store.pause if self.paused else self.store.resume)("t")

    def arrive(self, key: Key, place: int, stem: str) -> None:
        full = self.length(place) >= CAP
        answer = self.park(place, stem)
        if stem in key.ended:
            assert answer is Outcome.DUPLICATE
        elif key.head == stem:
            assert answer is (Outcome.DUPLICATE if key.kind == "r" else Outcome.DONE)
        elif stem in key.known:
            assert answer is Outcome.DUPLICATE
        elif key.head is None:
            assert answer is Outcome.ABSENT
            # it is handled, and fails: the key is closed, its retry waits in the store
            assert self.gates.close(self.owner, [(self.names[place], stem, True, "k")]) == [Outcome.DONE]
            self.store.schedule([self.item(place, stem, 0)])
            key.head, key.kind = stem, "c"
            key.known.add(stem)
        elif full:
            assert answer is Outcome.WRONG_STATE
        else:
            assert answer is Outcome.HELD
            key.line.append(stem)
            key.known.add(stem)

    def length(self, place: int) -> int:
        """The line as the store counts it: those let out by hand leave it when their turn comes."""
        return next((key.parked for key in self.gates.closed(SCOPE) if key.gate == self.names[place]), 0)

    def end(self, key: Key, stem: str, action: str) -> None:
        found = self.store.get([f"{stem}.0"], anywhere=True)[0]
        if found is None or found.state != "due" or self.paused:
            return
        if action == "cancel":
            assert self.store.cancel([found.id], route=found.route) == [Outcome.DONE]
            key.known.discard(stem)
        else:
            claim = self.store.claim(100)
            dead = [Dead(one.id, "test") for one in claim.items if one.id == found.id]
            rest = [Done(one.id) for one in claim.items if one.id != found.id]
            for one in rest:
                for other in self.keys:
                    other.known.discard(one.id[:-2])
            self.store.settle(claim, [*rest, *dead])
        key.ended.add(stem)
        key.follow()

    def check(self) -> None:
        """The store has the keys as the model has them, and everybody in line is held in order."""
        told = {key.gate: key.head for key in self.gates.closed(SCOPE)}
        wanted = {name: key.head for name, key in zip(self.names, self.keys, strict=True) if key.head is not None}
        assert told == wanted
        held = [found.id[:-2] for found in self.store.list_items("held").found if found.reason.startswith("ordered")]
        for place, key in enumerate(self.keys):
            assert [stem for stem in held if stem.startswith(f"{place}m")] == key.line
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
    """One head, a line in order, nothing lost."""
    run(DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: 1_000_000).open(), history)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Callable[[], DelayStore]:
    client: redis.Redis = request.getfixturevalue(request.param)

    def fresh() -> DelayStore:
        backend = RedisBackend(client, Dialect(f"gates{next(_numbers)}"))
        return DelayStore(backend, test_clock=lambda: 1_000_000).open()

    return fresh


@pytest.mark.parametrize("served", ["shared_fake"], indirect=True)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_the_script_follows_the_model(served: Callable[[], DelayStore], history: list[tuple[str, int, int]]) -> None:
    """The same on the imitation of a server."""
    run(served(), history)


@pytest.mark.parametrize("served", [pytest.param("shared_client", marks=pytest.mark.real)], indirect=True)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_the_script_follows_the_model_on_a_server(
    served: Callable[[], DelayStore], history: list[tuple[str, int, int]]
) -> None:
    """The same on a real one."""
    run(served(), history)
