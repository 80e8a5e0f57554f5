"""`admission.py` accepts the sequences of protocol events that the models allow, and refuses all others with a
reason."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spec.__main__ import MODELS, without
from tests.spec.admission import Event, admits, why_refused
from tests.spec.explorer import Model, Step
from tests.spec.journal import events_of
from tests.spec.owned_claims import OwnedClaims
from tests.spec.shared_claims import SharedClaims
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Done, Extend, Settle

BROKEN = [(model, name) for model in MODELS for name in model.safeguards]
A = ("a",)
GOOD = {
    "an item is claimed, published and settled": [
        Event("accept", ("a", "b")),
        Event("claim", A, 1, epoch=1, until_ms=100),
        Event("publish", A, 1),
        Event("settle", A, 1, to="done"),
    ],
    "a lease ends, and another process publishes again": [
        Event("accept", A),
        Event("claim", A, 1, until_ms=100),
        Event("publish", A, 1),
        Event("recover", A, now_ms=100),
        Event("claim", A, 2, until_ms=200),
        Event("publish", A, 2),
        Event("settle", A, 2, to="done"),
    ],
    "an item comes again after it was settled": [
        Event("accept", A),
        Event("claim", A, 1),
        Event("settle", A, 1, to="due"),
        Event("claim", A, 2),
        Event("publish", A, 2),
        Event("settle", A, 2, to="done"),
        Event("accept", A),
    ],
    "a new owner ends the claims of the one before by the number": [
        Event("accept", ("a", "b")),
        Event("acquire", epoch=2, who="p"),
        Event("fence", who="p"),
        Event("send", (), 0, who="p"),
        Event("claim", A, 1, epoch=2),
        Event("claim", ("b",), 2, epoch=2),
        Event("send", A, 1, who="p"),
        Event("acquire", epoch=3, who="q"),
        Event("fence", who="q"),
        Event("resolve", A, 1, epoch=3, to="done"),
        Event("resolve", ("b",), 1, epoch=3, to="due"),
        Event("send", (), 1, who="q"),
        Event("claim", ("b",), 3, epoch=3),
        Event("send", ("b",), 3, who="q"),
        Event("settle", ("b",), 3, to="done"),
    ],
}
LEASED = [Event("accept", A), Event("claim", A, 1, until_ms=100)]
OWNED = [
    Event("accept", ("a", "b")),
    Event("acquire", epoch=2, who="p"),
    Event("fence", who="p"),
    Event("claim", A, 1, epoch=2),
    Event("claim", ("b",), 2, epoch=2),
]
BAD = {
    "was in the store already": [Event("accept", A), Event("accept", A)],
    "did not wait": [*LEASED, Event("claim", A, 2)],
    "the last claim was 1": [*LEASED, Event("recover", A, now_ms=100), Event("claim", A, 1)],
    "not under claim 1, but 2": [
        *LEASED,
        Event("recover", A, now_ms=100),
        Event("claim", A, 2),
        Event("publish", A, 1),
        Event("settle", A, 1, to="done"),
    ],
    "a was not published": [*LEASED, Event("settle", A, 1, to="done")],
    "never under claim 2": [*LEASED, Event("publish", A, 2)],
    "ends at 100, and it was 99": [*LEASED, Event("recover", A, now_ms=99)],
    "ends at 200, and it was 150": [*LEASED, Event("extend", A, 1, until_ms=200), Event("recover", A, now_ms=150)],
    "the epoch is 2, not 1": [Event("accept", A), Event("step", epoch=2), Event("claim", A, 1, epoch=1)],
    "the epoch was 2 before": [Event("step", epoch=2), Event("acquire", epoch=2, who="p")],
    "p is fenced, by q": [*OWNED, Event("fence", who="q"), Event("send", A, 1, who="p")],
    "the number says that it was": [*OWNED, Event("send", ("b",), 2, who="p")],
    "claim 1 was sent before": [*OWNED, Event("send", A, 1, who="p"), Event("send", A, 1, who="p")],
    "claim 1 was not sent, and a is done": [*OWNED, Event("resolve", A, 0, epoch=2, to="done")],
    "claim 1 was sent, and a is due": [
        *OWNED,
        Event("send", A, 1, who="p"),
        Event("resolve", A, 1, epoch=2, to="due"),
    ],
    "a has to be held": [*OWNED, Event("resolve", A, -1, epoch=2, to="due")],
    "a is not free to move": [*LEASED, Event("move", A, to="done")],
    "there is no such event": [*LEASED, Event("vanish", A)],
}


@pytest.mark.parametrize("trace", GOOD.values(), ids=GOOD)
def test_a_behaviour_of_the_models_is_admitted(trace: list[Event]) -> None:
    assert why_refused(trace) is None
    assert admits(trace)


@pytest.mark.parametrize(("reason", "trace"), BAD.items(), ids=BAD)
def test_another_sequence_is_refused_with_the_reason(reason: str, trace: list[Event]) -> None:
    """The models forbid the last event of each sequence in BAD. `why_refused` gives the reason."""
    assert admits(trace[:-1])
    assert reason in (why_refused(trace) or "")


def test_shards_are_apart() -> None:
    assert admits([Event("accept", A), Event("accept", A, shard=1), Event("claim", A, 1, shard=1)])


def of_path(path: list[Step[Any]], before: Any) -> Iterator[Event]:
    """Convert the steps of a model's path to protocol events."""
    if "producer" not in before._fields:
        yield Event("accept", tuple(f"i{i + 1}" for i in range(len(before.place))))
    for action, who, after in path:
        yield from _of_step(action, who, before, after)
        before = after


def _of_step(action: str, who: tuple[str, ...], before: Any, after: Any) -> Iterator[Event]:
    changes = [(f"i{i + 1}", i, old, new) for i, (old, new) in enumerate(zip(before.place, after.place, strict=True))]
    if after.epoch != before.epoch:
        yield Event("acquire" if action.startswith("Acquire") else "step", epoch=after.epoch, who=who[0] if who else "")
    if "senders" in before._fields:
        if action in ("Fence", "DoubtFence"):
            yield Event("fence", who=who[0])
        out = tuple(name for name, i, _, _ in changes for _ in range(after.published[i] - before.published[i]))
        if out or (action in ("SendNumber", "Refresh") and before.senders[int(who[0][1:]) - 1]):
            number = int(who[1]) if out else after.last
            yield Event("send", out, number, who=who[0])
    else:
        for name, i, _, _ in changes:
            if after.published[i] > before.published[i]:
                yield Event("publish", (name,), before.held[int(who[0][1:]) - 1][i])
    taken = tuple(name for name, _, old, new in changes if old == "due" and new == "leased")
    if taken:
        known = before.known if "known" in before._fields else before.mine
        yield Event("claim", taken, after.claims, known[int(who[0][1:]) - 1])
    for name, i, old, new in changes:
        if old in ("none", "done") and new == "due":
            yield Event("accept", (name,))
        elif old == "leased" and new != "leased":
            yield _ended(action, who, name, i, new, before)


def _ended(action: str, who: tuple[str, ...], name: str, i: int, new: str, before: Any) -> Event:
    if action == "Recover":
        return Event("recover", (name,), to=new)
    p = int(who[0][1:]) - 1
    if action.startswith("Resolve"):
        return Event("resolve", (name,), before.number[p], before.mine[p], to=new)
    return Event("settle", (name,), before.held[p][i], to=new)


def walk(model: Model[Any], seed: int, most: int) -> list[Step[Any]]:
    """A random path through the states of a model."""
    draw = random.Random(seed)
    state, path = model.initial(), []
    while len(path) < most and (steps := list(model.steps(state))):
        path.append(draw.choice(steps))
        state = path[-1][2]
    return path


@pytest.mark.parametrize("model", [SharedClaims(items=3, faults=6), OwnedClaims(3, 3, faults=4)], ids=lambda m: m.name)
def test_every_walk_through_a_model_is_admitted(model: Model[Any]) -> None:
    """`admission.py` refuses no random path through the states of a model."""
    for seed in range(300):
        path = walk(model, seed, 120)
        assert why_refused(of_path(path, model.initial())) is None, path


REFUSED = {
    "SharedClaims": {"epoch-not-compared", "claim-number-not-compared", "settle-before-publish"},
    "OwnedClaims": {
        "fencing-skipped",
        "settle-before-send",
        "epoch-not-compared-by-claim",
        "epoch-not-compared-by-resolve",
        "claim-without-token",
        "claim-number-not-compared",
        "sent-out-of-order",
        "doubt-not-asked",
        "doubt-not-confirmed",
        "number-not-in-the-transaction",
        "refresh-in-doubt",
    },
}


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(("model", "safeguard"), BROKEN, ids=[f"{model.name}-{name}" for model, name in BROKEN])
def test_without_a_safeguard_a_promise_breaks(model: type[Model[Any]], safeguard: str) -> None:
    """A model without a safeguard has a path that breaks a promise. The path can be printed step by step.

    For the safeguards in `REFUSED`, `admission.py` refuses an event of the path. For the other safeguards it accepts
    the whole path.
    """
    found = without(model, safeguard)
    assert found.violated == model.safeguards[safeguard]
    text = str(found)
    assert text.count("\n") == len(found.path)
    assert all(action in text for action, _, _ in found.path)
    assert admits(of_path(found.path, found.start)) == (safeguard not in REFUSED[model.name])


def test_each_refused_safeguard_is_one_of_its_model() -> None:
    assert all(REFUSED[model.name] <= set(model.safeguards) for model in MODELS)


def test_a_journal_becomes_events() -> None:
    """In a journal with two claims, the lease of the first has ended at the second. So `events_of` yields a
    recovery before the second claim."""
    item = Item("a", 0, b"x")
    journal = [
        (0, 1_000_000, [Call(0, Schedule([item], "t1"))]),
        (0, 2_000_000, [Call(0, ClaimDue(10, 500))]),
        (0, 2_100_000, [Call(0, Extend(1, ["a"], 600))]),
        (0, 3_000_000, [Call(0, ClaimDue(10, 500))]),
        (0, 3_100_000, [Call(0, Settle(1, [Done("a")])), Call(0, Settle(2, [Done("a")]))]),
    ]
    events = list(events_of(journal, 1))
    assert [event.kind for event in events] == ["accept", "claim", "extend", "recover", "claim", "settle"]
    assert [event.number for event in events] == [0, 1, 1, 0, 2, 2]
    assert (events[2].until_ms, events[3].now_ms) == (2_700, 3_000)
    assert admits(events, publishing=False)
