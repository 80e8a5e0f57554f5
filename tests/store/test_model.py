"""Random histories of calls: stores compared with a model of plain dicts, and the memory store with a server.

In the model, an item is a dict entry with a state. After every step the store must have the model's state and score of
each id, and its counters must equal the model's numbers of items.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import Claim
from wheel_sched.store.core.counts import Window
from wheel_sched.store.core.delay_store import Backend
from wheel_sched.store.core.get import Find
from wheel_sched.store.core.items import STATES, Item, Outcome, State, encode_text
from wheel_sched.store.core.plans import Open
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settlement
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis

IDS = ["a", "b", "B", "é", "\udcff", "a\nb", "1:a", "long" * 20]
TOPICS = ["", "t", "u:v"]
CLAMP_MS = 5000

ids = st.sampled_from(IDS)
some_ids = st.lists(ids, min_size=1, max_size=6)
topics = st.sampled_from(TOPICS)
delays = st.integers(-50, 200)
bodies = st.sampled_from([b"", b"x", b"1:2:3:4:5", bytes(range(256))])
refs = st.sampled_from([(), ("r",), ("r", "s")])


@dataclass
class Cell:
    """An item of the model."""

    state: State
    score: int
    topic: str
    body: bytes
    refs: tuple[str, ...] = ()
    code: str = ""
    claim: int = 0
    due: int = 0
    cancelled: bool = False
    lapses: int = 0


class Model:
    """The store as a dict."""

    def __init__(self, now: int) -> None:
        self.cells: dict[str, Cell] = {}
        self.paused: set[str] = set()
        self.now, self.last = now, 0  # a new store has seen no time yet
        self.epoch = 1
        self.claims = 0
        self.accepted = self.gone = 0

    def begin(self, clock: int) -> None:
        """Set the time of a call that writes. A small step back has no effect. A larger one starts a new epoch."""
        if self.last - CLAMP_MS <= clock < self.last:
            self.now = self.last
            return
        self.epoch += clock < self.last
        self.now = self.last = clock

    def sorted(self, state: State) -> list[str]:
        found = [i for i, cell in self.cells.items() if cell.state == state]
        return sorted(found, key=lambda i: (self.cells[i].score, encode_text(i)))

    def wait(self, cell: Cell, due: int | None) -> None:
        if due is None:
            cell.state, cell.score, cell.code = "held", 0, "parked"
        elif cell.topic in self.paused:
            cell.state, cell.score, cell.code = "held", due, "paused"
        else:
            cell.state, cell.score = "due", due

    def remove(self, item_id: str) -> None:
        del self.cells[item_id]
        self.gone += 1

    def add(self, item_id: str, cell: Cell, due: int | None) -> None:
        self.cells[item_id] = cell
        self.accepted += 1
        self.wait(cell, due)

    def recover(self, cap: int) -> int:
        expired = [i for i in self.sorted("leased") if self.cells[i].score <= self.now]
        for i in expired:
            cell = self.cells[i]
            cell.lapses += 1
            if cell.cancelled:
                self.remove(i)
            elif 0 < cap <= cell.lapses:
                cell.state, cell.score, cell.lapses = "dead", self.now, 0
            else:
                self.wait(cell, cell.due)
        return len(expired)

    def trim(self, cap: int) -> None:
        dead = self.sorted("dead")
        for i in dead[: max(0, len(dead) - cap)] if cap else []:
            self.remove(i)

    def claim(self, limit: int, lease: int, cap: int) -> list[tuple[str, int]]:
        self.recover(cap)
        due = [i for i in self.sorted("due") if self.cells[i].score <= self.now][:limit]
        self.claims += bool(due)
        taken = [(i, self.cells[i].score) for i in due]
        for i in due:
            cell = self.cells[i]
            cell.state, cell.claim, cell.due, cell.cancelled = "leased", self.claims, cell.score, False
            cell.score = self.now + lease
        return taken

    def settle(self, number: int, settlement: Settlement) -> Outcome:
        cell = self.cells.get(settlement.id)
        if cell is None or cell.state != "leased" or cell.claim != number:
            return Outcome.STALE
        cell.lapses = 0
        if isinstance(settlement, Next | Dead) and settlement.body is not None and not self._dropped(cell, settlement):
            cell.body, cell.topic, cell.refs = settlement.body, settlement.topic, settlement.refs
        match settlement:
            case Done(item_id):
                self.remove(item_id)
            case Dead():
                cell.state, cell.score = "dead", self.now
            case _ if cell.cancelled:
                self.remove(settlement.id)
                return Outcome.CANCELLED
            case Next(due_ms=due):
                self.wait(cell, due)
            case Held(reason=reason):
                cell.state, cell.score, cell.code = "held", 0, reason.split()[0]
        return Outcome.DONE

    @staticmethod
    def _dropped(cell: Cell, settlement: Settlement) -> bool:
        return cell.cancelled and isinstance(settlement, Next)


@dataclass
class Pair:
    """Two backends that must give equal answers to every call."""

    first: Backend
    second: Backend
    cluster: bool = False

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        answers = self.first.execute(calls, now_ms)
        others = self.second.execute(calls, now_ms)
        for call, one, other in zip(calls, answers, others, strict=True):
            assert _comparable(call, one) == _comparable(call, other), call.operation
        return answers

    def check_server(self) -> None:
        """Does nothing, because both servers are known."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)


def _comparable(call: Call[Any], answer: Any) -> Any:
    if isinstance(answer, Exception):
        return type(answer)
    if isinstance(answer, Window):
        return replace(answer, mark=b"")  # the id of a marker, which each server makes itself
    if isinstance(call.operation, Find):
        return sorted(answer.ids)
    if isinstance(call.operation, Open):
        return answer[:-1]  # the wall clock
    return answer


class StoreMachine(RuleBasedStateMachine):
    """A state machine that makes the store's calls in any order."""

    make_backend: Callable[[], Backend]

    @initialize()
    def open(self) -> None:
        self.bench = Bench(type(self).make_backend(), 1)
        self.store = self.bench.store
        self.model = Model(self.bench.now_ms)
        self.held_claims: list[Claim] = []
        self.tokens = itertools.count()

    def _begin(self) -> Model:
        self.model.begin(self.bench.now_ms)
        return self.model

    @rule(batch=some_ids, delay=st.none() | delays, topic=topics, body=bodies, refs=refs, repeat=st.booleans())
    def schedule(
        self, batch: list[str], delay: int | None, topic: str, body: bytes, refs: tuple[str, ...], repeat: bool
    ) -> None:
        model = self._begin()
        due = None if delay is None else self.bench.now_ms + delay
        expected = []
        for i in batch:
            if i in model.cells:
                expected.append(Outcome.DUPLICATE)
                continue
            model.add(i, Cell("due", 0, topic, body, refs), due)
            expected.append(Outcome.STORED if model.cells[i].state == "due" else Outcome.HELD)
        items = [Item(i, due, body, topic, refs) for i in batch]
        token = f"s{next(self.tokens)}"
        for _ in range(1 + repeat):
            assert self.store.schedule(items, token=token).outcomes == expected

    @rule(limit=st.integers(1, 5), lease=st.integers(1, 100), cap=st.sampled_from([0, 2]), repeat=st.booleans())
    def claim(self, limit: int, lease: int, cap: int, repeat: bool) -> None:
        model = self._begin()
        expected = model.claim(limit, lease, cap)
        token = f"c{next(self.tokens)}"
        claim = self.store.claim(limit, lease_ms=lease, lapse_cap=cap, token=token)
        assert [(item.id, item.due_ms) for item in claim.items] == expected
        assert all(item.due_ms <= model.now for item in claim.items), "claimed before its due"
        assert (claim.number, claim.epoch) == (model.claims if expected else 0, model.epoch)
        for item in claim.items:
            cell = model.cells[item.id]
            assert (item.body, item.topic, item.refs) == (cell.body, cell.topic, cell.refs)
        if repeat and expected:
            again = self.store.claim(limit, lease_ms=lease, lapse_cap=cap, token=token)
            assert (again.number, again.items) == (claim.number, claim.items)
        if claim.items:
            self.held_claims.append(claim)

    @precondition(lambda self: self.held_claims)
    @rule(data=st.data(), cap=st.sampled_from([0, 0, 1]), repeat=st.booleans())
    def settle(self, data: st.DataObject, cap: int, repeat: bool) -> None:
        model = self._begin()
        claim = data.draw(st.sampled_from(self.held_claims))
        now = self.bench.now_ms
        endings: st.SearchStrategy[Callable[[str], Settlement]] = st.one_of(
            st.just(Done),
            st.builds(lambda delay: lambda i: Next(i, now + delay), delays),
            st.builds(
                lambda delay, body, topic, refs: lambda i: Next(i, now + delay, body, topic, refs),
                delays,
                bodies,
                topics,
                refs,
            ),
            st.just(lambda i: Next(i, None)),
            st.sampled_from(["mine: x", "paused by hand"]).map(lambda reason: lambda i: Held(i, reason)),
            st.just(lambda i: Dead(i, "x")),
            st.builds(lambda body, topic, refs: lambda i: Dead(i, "y", body, topic, refs), bodies, topics, refs),
        )
        named = data.draw(st.lists(st.sampled_from([i.id for i in claim.items]) | ids, max_size=5))
        settlements = [data.draw(endings)(i) for i in named]
        done_first = sorted(range(len(named)), key=lambda at: type(settlements[at]) is not Done)
        expected = {at: model.settle(claim.number, settlements[at]) for at in done_first}
        model.trim(cap)
        token = f"e{next(self.tokens)}"
        for _ in range(1 + repeat):
            outcomes = self.store.settle(claim, settlements, dead_cap=cap, token=token).outcomes
            assert outcomes == [expected[at] for at in range(len(named))]

    @precondition(lambda self: self.held_claims)
    @rule(data=st.data(), lease=st.integers(1, 100))
    def extend(self, data: st.DataObject, lease: int) -> None:
        model = self._begin()
        claim = data.draw(st.sampled_from(self.held_claims))
        expected = []
        for item in claim.items:
            cell = model.cells.get(item.id)
            if cell is None or cell.state != "leased" or cell.claim != claim.number:
                expected.append(Outcome.STALE)
                continue
            cell.score = model.now + lease
            expected.append(Outcome.CANCELLED if cell.cancelled else Outcome.DONE)
        assert self.store.extend(claim, [item.id for item in claim.items], lease) == expected

    def _waiting(self, item_id: str) -> Cell | Outcome:
        cell = self._begin().cells.get(item_id)
        if cell is None:
            return Outcome.ABSENT
        if cell.state == "dead":
            return Outcome.WRONG_STATE
        return Outcome.IN_FLIGHT if cell.state == "leased" else cell

    @rule(item_id=ids, delay=delays)
    def reschedule(self, item_id: str, delay: int) -> None:
        cell = self._waiting(item_id)
        due = self.bench.now_ms + delay
        (outcome,) = self.store.reschedule([item_id], due)
        if isinstance(cell, Cell):
            self.model.wait(cell, due)
        assert outcome == (Outcome.DONE if isinstance(cell, Cell) else cell)

    @rule(
        item_id=ids,
        delay=st.none() | delays,
        topic=topics,
        body=bodies,
        keep=st.booleans(),
        create=st.booleans(),
        refs=refs,
    )
    def replace(
        self, item_id: str, delay: int | None, topic: str, body: bytes, keep: bool, create: bool, refs: tuple[str, ...]
    ) -> None:
        cell = self._waiting(item_id)
        due = None if delay is None else self.bench.now_ms + delay
        outcome = self.store.replace(Item(item_id, due, body, topic, refs), keep_due=keep, create=create)
        if isinstance(cell, Cell):
            cell.topic, cell.body, cell.refs = topic, body, refs
            if not keep:
                self.model.wait(cell, due)
            elif cell.state == "due":
                self.model.wait(cell, cell.score)
            cell = Outcome.DONE
        elif cell is Outcome.ABSENT and create:
            self.model.add(item_id, Cell("due", 0, topic, body, refs), None if keep else due)
            cell = Outcome.DONE
        assert outcome == cell

    @rule(item_id=ids)
    def cancel(self, item_id: str) -> None:
        cell = self._waiting(item_id)
        (outcome,) = self.store.cancel([item_id])
        if isinstance(cell, Cell):
            self.model.remove(item_id)
            cell = Outcome.DONE
        elif cell is Outcome.IN_FLIGHT:
            self.model.cells[item_id].cancelled = True
            cell = Outcome.CANCELLED
        assert outcome == cell

    @rule(item_id=ids, reason=st.sampled_from(["mine", "paused too"]))
    def hold(self, item_id: str, reason: str) -> None:
        cell = self._waiting(item_id)
        (outcome,) = self.store.hold([item_id], reason)
        if isinstance(cell, Cell):
            if cell.state == "held":
                cell = Outcome.WRONG_STATE
            else:
                cell.state, cell.code = "held", "mine"  # a person's hold is not that of the pause, whatever its words
                cell = Outcome.DONE
        assert outcome == cell

    @rule(item_id=ids, delay=st.none() | delays)
    def release(self, item_id: str, delay: int | None) -> None:
        cell = self._waiting(item_id)
        due = None if delay is None else self.bench.now_ms + delay
        (outcome,) = self.store.release([item_id], due)
        if isinstance(cell, Cell):
            if cell.state == "due":
                cell = Outcome.WRONG_STATE
            else:
                self.model.wait(cell, cell.score if due is None else due)
                cell = Outcome.DONE
        assert outcome == cell

    @rule(item_id=ids, delay=delays, topic=topics, repair=st.booleans(), delete=st.booleans())
    def raise_the_dead(self, item_id: str, delay: int, topic: str, repair: bool, delete: bool) -> None:
        model = self._begin()
        cell = model.cells.get(item_id)
        due = self.bench.now_ms + delay
        if delete:
            (outcome,) = self.store.delete_dead([item_id])
        else:
            item = Item(item_id, due, b"repaired", topic) if repair else None
            (outcome,) = self.store.requeue([(item_id, due, item)])
        if cell is None:
            assert outcome == Outcome.ABSENT
        elif cell.state != "dead":
            assert outcome == (Outcome.IN_FLIGHT if cell.state == "leased" else Outcome.WRONG_STATE)
        else:
            assert outcome == Outcome.DONE
            if delete:
                model.remove(item_id)
                return
            if repair:
                cell.body, cell.topic, cell.refs = b"repaired", topic, ()
            model.wait(cell, due)

    @rule(topic=topics)
    def pause(self, topic: str) -> None:
        model = self._begin()
        model.paused.add(topic)
        due = [i for i in model.sorted("due") if model.cells[i].topic == topic]
        for i in due:
            model.wait(model.cells[i], model.cells[i].score)
        assert self.store.pause(topic) == len(due)

    @rule(topic=topics, spread=st.sampled_from([0, 100]))
    def resume(self, topic: str, spread: int) -> None:
        model = self._begin()
        model.paused.discard(topic)
        held = [i for i in model.sorted("held") if model.cells[i].topic == topic]
        back = [i for i in held if model.cells[i].code == "paused"]
        for rank, i in enumerate(back):
            cell = model.cells[i]
            overdue = cell.score <= model.now and spread
            model.wait(cell, model.now + spread * rank // len(held) if overdue else cell.score)
        assert self.store.resume(topic, spread_ms=spread) == len(back)

    @rule(cap=st.sampled_from([0, 2]), lapse_cap=st.sampled_from([0, 2]))
    def sweep(self, cap: int, lapse_cap: int) -> None:
        model = self._begin()
        recovered = model.recover(lapse_cap)
        model.trim(cap)
        assert self.store.sweep(dead_cap=cap, lapse_cap=lapse_cap)[0].recovered == recovered

    @rule(times=st.integers(1, 3), cap=st.sampled_from([0, 2]))
    def claimers_crash(self, times: int, cap: int) -> None:
        for _ in range(times):
            self.claim(5, 10, cap, False)
            self.bench.clock.advance(10)

    @rule(by=st.one_of(st.integers(0, 300), st.sampled_from([-1, -50, -5000, -5001, -86_400_000, 86_400_000])))
    def time_passes(self, by: int) -> None:
        self.bench.clock.advance(by)

    @invariant()
    def the_store_is_where_the_model_is(self) -> None:
        found = dict(zip(IDS, self.store.get(IDS), strict=True))
        places = {i: (f.state, f.score_ms, f.topic, f.body, f.refs) for i, f in found.items() if f is not None}
        cells = self.model.cells
        assert places == {i: (c.state, c.score, c.topic, c.body, c.refs) for i, c in cells.items()}
        carry = {ref: {i for i, cell in cells.items() if ref in cell.refs} for ref in ("r", "s")}
        assert {ref: set(self.store.find(ref)) for ref in carry} == carry

    @invariant()
    def the_counters_are_the_cardinalities(self) -> None:
        counts = self.store.counts()
        cells = self.model.cells.values()
        expected = {(state, topic): 0 for state in STATES for topic in TOPICS}
        for cell in cells:
            expected[cell.state, cell.topic] += 1
        assert counts.now == {place: number for place, number in expected.items() if number}
        assert {state: counts.sizes[state] for state in STATES} == {state: counts.total(state) for state in STATES}
        assert counts.sizes["body"] + counts.sizes["deadbody"] == len(cells)
        gone = sum(counts.happened(event) for event in ("completed", "cancelled", "deleted", "trimmed", "replaced"))
        assert (counts.happened("accepted"), gone) == (self.model.accepted, self.model.gone)
        assert self.model.accepted == self.model.gone + len(cells)
        assert (counts.epoch, set(counts.paused)) == (self.model.epoch, self.model.paused)

    @invariant()
    def the_death_groups_count_the_dead(self) -> None:
        deaths = self.bench.death_groups.groups()
        dead = [cell.topic for cell in self.model.cells.values() if cell.state == "dead"]
        assert (deaths.dead, deaths.uncounted) == (len(dead), 0)
        for topic in TOPICS:
            assert sum(group.count for group in deaths.groups if group.topic == topic) == dead.count(topic)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()


def _run(make_backend: Callable[[], Backend], share: int) -> None:
    """Run the state machine for `1 / share` of the profile's number of examples, at least 5."""
    machine = type("Machine", (StoreMachine,), {"make_backend": staticmethod(make_backend)})
    examples = max(5, settings().max_examples // share)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_memory_keeps_to_the_model(share: int) -> None:
    """Random histories on the memory store give the model's answers."""
    _run(lambda: MemoryBackend(1, clock="test"), share)


@pytest.mark.parametrize("share", [12, pytest.param(4, marks=pytest.mark.slow)])
def test_the_imitation_keeps_to_the_model(shared_fake: redis.Redis, namespace: str, share: int) -> None:
    """Random histories of the scripts on fakeredis give the model's answers."""
    numbers = itertools.count()
    _run(lambda: RedisBackend(shared_fake, Dialect(f"{namespace}-{next(numbers)}")), share)


@pytest.mark.real
def test_memory_and_server_answer_alike(shared_client: redis.Redis, namespace: str) -> None:
    """A memory store and a server answer a random history alike, and both agree with the model."""
    numbers = itertools.count()

    def pair() -> Backend:
        server = RedisBackend(shared_client, Dialect(f"{namespace}-{next(numbers)}"))
        return Pair(MemoryBackend(1, clock="test"), server)

    _run(pair, share=2)
