"""Actions in any order of events. An execution changes exactly what its preview selected, or nothing, once per key.

Each call on the store, and each change of a thing, is a point at which an event may happen: somebody else changes a
thing, the same or another request runs from beginning to end, the reply is lost, or the process dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.dashboard import Action, ActionResult, Dashboard, Preview, Visitor
from wheel_sched.dashboard.actions import digest_of, execute, preview
from wheel_sched.dashboard.signing import TextSigner
from wheel_sched.errors import StoreUnavailable, WheelSchedError
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.memory import MemoryBackend

NAMES = ("ball", "box", "cube")
KEYS = ("the first key", "the second key")
ADA = Visitor("ada", "delete")

# an event at a point: somebody else changes a thing, a request is executed, the reply is lost, or the process dies
Event = tuple[str, int, int]
EVENTS = st.one_of(
    st.tuples(st.just("change"), st.integers(0, len(NAMES) - 1), st.just(0)),
    st.tuples(st.just("execute"), st.integers(0, 3), st.integers(0, len(KEYS) - 1)),
    st.tuples(st.sampled_from(("lose", "die")), st.just(0), st.just(0)),
)
REQUESTS = st.tuples(st.just("execute"), st.integers(0, 3), st.integers(0, len(KEYS) - 1))
STEPS = st.one_of(st.tuples(st.just("preview"), st.just(0), st.just(0)), EVENTS, REQUESTS, REQUESTS)
PLANS = st.lists(st.tuples(STEPS, st.dictionaries(st.integers(0, 9), EVENTS, max_size=2)), min_size=2, max_size=8)


class Died(BaseException):
    """The process is dead. No later call of this process reaches the store."""


@dataclass
class Token:
    """A preview that somebody has seen: its token, and the things with their versions."""

    text: str
    selected: dict[str, int]


@dataclass
class Room:
    """Things with versions, an action that changes all of them, and what each request has changed."""

    backend: MemoryBackend = field(default_factory=lambda: MemoryBackend(1))
    signer: TextSigner = field(default_factory=lambda: TextSigner(b"sixteen bytes ok"))
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    tokens: list[Token] = field(default_factory=list)
    began: Counter[str] = field(default_factory=Counter)  # idempotency key -> how often its action began
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def happen(self, event: Event, inside: dict[int, Event]) -> None:
        """Let an event happen. `inside` has the events that happen at its points."""
        kind, first, second = event
        if kind == "change":
            self.versions[NAMES[first]] += 1
        elif kind == "preview":
            process = Process(self, {})
            found, text = preview(process.dashboard, process.action, {}, ADA)
            self.tokens.append(Token(text, found.selected))
        elif kind == "execute" and self.tokens:
            Process(self, inside).request(self.tokens[first % len(self.tokens)], KEYS[second])


class Process(DelayStore):
    """A process that executes one request, with its store, its action, and the events that happen at its points."""

    def __init__(self, room: Room, inside: dict[int, Event]) -> None:
        super().__init__(room.backend)
        self.room, self.inside = room, inside
        self.points = 0
        self.dead = False
        self.key, self.token, self.painted = "", Token("", {}), False
        self.dashboard = cast("Dashboard", SimpleNamespace(store=self, signer=room.signer))
        self.action = Action("paint", "operate", "Paint all things", (), self._preview, self._paint)

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Overrides `DelayStore.execute`: an event may happen before and after the calls."""
        lost = self._point() == "lose"
        answers = super().execute(calls)
        if lost or self._point() == "lose":
            return [StoreUnavailable("no reply", in_doubt=True) for _ in calls]
        return answers

    def _point(self) -> str:
        """A point at which an event may happen. Returns the kind of the event, or ""."""
        if self.dead:
            raise Died
        event = self.inside.get(self.points)
        self.points += 1
        if event is None:
            return ""
        if event[0] == "die":
            self.dead = True
            raise Died
        self.room.happen(event, {})
        return event[0]

    def _preview(self, *_: Any) -> Preview:
        selected = dict(self.room.versions)
        return Preview(len(selected), "paint all", digest_of([sorted(selected.items())]), selected=selected)

    def _paint(self, _: Dashboard, __: Any, found: Preview, who: str) -> ActionResult:
        room = self.room
        assert found.selected == self.token.selected, "it may change only what was previewed"
        self.painted = True
        room.began[self.key] += 1
        assert room.began[self.key] == 1, "a key is executed once"
        done = 0
        for name, version in found.selected.items():
            self._point()
            if room.versions[name] == version:
                room.versions[name] += 1
                done += 1
        return ActionResult(done, "painted", {"changed meanwhile": len(found.selected) - done})

    def request(self, token: Token, key: str) -> None:
        """Execute what a preview showed, as the dashboard does."""
        self.key, self.token = key, token
        room = self.room
        with suppress(Died, WheelSchedError):
            answer = execute(self.dashboard, self.action, {}, ADA, token.text, key)
            assert answer["done"] + answer["left"]["changed meanwhile"] == len(NAMES)
            assert answer["repeated"] != self.painted
            plain = {name: value for name, value in answer.items() if name != "repeated"}
            assert room.answers.setdefault(key, plain) == plain, "a repeat gets the first answer"


@given(PLANS)
def test_an_execution_changes_what_was_previewed_or_nothing_and_once_per_key(
    plan: list[tuple[Event, dict[int, Event]]],
) -> None:
    room = Room()
    room.happen(("preview", 0, 0), {})
    for step, inside in plan:
        before, began = dict(room.versions), room.began.total()
        room.happen(step, inside)
        others = any(event[0] in ("change", "execute") for event in inside.values())
        if step[0] == "execute" and not others and room.began.total() == began:
            assert room.versions == before, "a request that was refused has changed nothing"


def test_a_change_between_preview_and_execution_refuses_it_and_frees_the_key() -> None:
    """If something has changed since the preview, the execution is refused. The idempotency key can then be used with a
    new preview, but only once.
    """
    room = Room()
    room.happen(("preview", 0, 0), {})
    room.happen(("change", 0, 0), {})
    room.happen(("execute", 0, 0), {})
    assert not room.began
    room.happen(("preview", 0, 0), {})
    for _ in range(3):
        room.happen(("execute", 1, 0), {})
    assert room.began == {KEYS[0]: 1}
    assert room.versions == {"ball": 2, "box": 1, "cube": 1}


@pytest.mark.parametrize("point", range(9))
def test_a_process_that_dies_at_any_point_changes_nothing_twice(point: int) -> None:
    """After the death, a repeated request is refused or executed. In no case is the request executed twice."""
    room = Room()
    room.happen(("preview", 0, 0), {})
    room.happen(("execute", 0, 0), {point: ("die", 0, 0)})
    for _ in range(2):
        room.happen(("execute", 0, 0), {})
    assert room.began[KEYS[0]] <= 1
    assert all(version <= 1 for version in room.versions.values())
