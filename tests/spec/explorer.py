"""Explorer: visits every state that a model can reach, breadth first. So each counterexample is a shortest one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import Any, ClassVar, Generic, TypeVar

S = TypeVar("S", bound=Any)
T = TypeVar("T")

FINISHES = "Finishes"

Step = tuple[str, tuple[str, ...], S]
"""An action, its arguments, and the state after it."""


def changed(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """A copy of the tuple with `value` at `index`."""
    return (*values[:index], value, *values[index + 1 :])


class Model(Generic[S]):
    """A model of a protocol: its first state, its steps, and what must hold in every state.

    Args:
        processes: number of processes.
        items: number of items.
        each: how often a kind of fault may occur, by kind. Kinds that are absent may occur once.
        faults: how many faults may occur in all.
        broken: the safeguard that is switched off, "none" = all are on.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    safeguards: ClassVar[Mapping[str, str]]  # the invariant that breaks without the safeguard
    of_items: ClassVar[tuple[str, ...]]  # variables with one value per item
    of_processes: ClassVar[tuple[str, ...]]  # variables with one value per process
    grids: ClassVar[tuple[str, ...]]  # variables with one row per process, and in it one value per item
    one_process: ClassVar[str | None] = None  # the variable that holds the number of a process, or a negative number

    def __init__(
        self,
        processes: int = 2,
        items: int = 2,
        *,
        each: Mapping[str, int] | None = None,
        faults: int = 2,
        broken: str = "none",
    ) -> None:
        if broken != "none" and broken not in self.safeguards:
            raise ValueError(f"expected a safeguard of {self.name}, got: {broken!r}; it has {sorted(self.safeguards)}")
        self.processes, self.items, self.faults, self.broken = processes, items, faults, broken
        self.limits = tuple((each or {}).get(kind, 1) for kind in self.kinds)

    def initial(self) -> S:
        """The first state."""
        raise NotImplementedError

    def steps(self, s: S) -> Iterator[Step[S]]:
        """The steps that the model allows in this state: action, process, and the state afterwards."""
        raise NotImplementedError

    def is_finished(self, s: S) -> bool:
        """Whether all items have reached their final state."""
        raise NotImplementedError

    @property
    def invariants(self) -> Mapping[str, Callable[[S], bool]]:
        """The invariants by name: each must hold in every state."""
        raise NotImplementedError

    def renamed(self, s: S) -> S:
        """The first, in sorted order, of the states that differ from `s` only in the order of items and of processes.

        Items are interchangeable in a model, and so are processes. So these states have the same future, and it is
        enough to visit one of them.
        """
        columns, rows, grids, one = self._places
        both = rows + grids
        found = []
        for items in permutations(range(self.items)):
            values = list(s)
            for at in columns:
                values[at] = tuple([values[at][i] for i in items])
            for at in grids:
                values[at] = tuple([tuple([row[i] for i in items]) for row in values[at]])
            named = -1 if one is None else values[one]
            processes = sorted(range(self.processes), key=lambda p: ([values[at][p] for at in both], p == named))
            for at in both:
                values[at] = tuple([values[at][p] for p in processes])
            if one is not None and named >= 0:
                values[one] = processes.index(named)
            found.append(type(s)(*values))
        return min(found)

    @cached_property
    def _places(self) -> tuple[list[int], list[int], list[int], int | None]:
        fields = self.initial()._fields
        kinds = [[fields.index(name) for name in names] for names in (self.of_items, self.of_processes, self.grids)]
        return kinds[0], kinds[1], kinds[2], None if self.one_process is None else fields.index(self.one_process)

    def strike(self, used: tuple[int, ...], kind: str) -> tuple[int, ...] | None:
        """Return `used` with one more fault of this kind, or None if the bounds allow no further fault."""
        at = self.kinds.index(kind)
        if used[at] >= self.limits[at] or sum(used) >= self.faults:
            return None
        return changed(used, at, used[at] + 1)


@dataclass(slots=True)
class Found(Generic[S]):
    """What an exploration has found.

    Attributes:
        states: number of states.
        steps: number of steps between them.
        violated: the broken invariant, "Finishes" when a state cannot reach the end; None: all properties hold.
        path: the shortest way to the violation: actions with arguments, and the states after them.
    """

    states: int
    steps: int
    violated: str | None = None
    path: list[Step[S]] = field(default_factory=list)
    start: S | None = None

    def __str__(self) -> str:
        if self.violated is None:
            return f"{self.states:,} states, {self.steps:,} steps: all properties hold"
        lines = [f"{self.violated} is broken after {len(self.path)} steps ({self.states:,} states seen):"]
        before = self.start
        for number, (action, who, after) in enumerate(self.path, 1):
            lines.append(f"  {number:2}. {action}({', '.join(who)})".ljust(44) + _difference(before, after))
            before = after
        return "\n".join(lines)


def _difference(before: Any, after: Any) -> str:
    """The fields that a step has changed."""
    fields = zip(after._fields, before, after, strict=True)
    return "  ".join(f"{name}={_plain(new)}" for name, old, new in fields if old != new and name != "used")


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + " ".join(_plain(each) for each in value) + ")"
    return {True: "yes", False: "-"}[value] if isinstance(value, bool) else str(value)


def explore(
    model: Model[S], only: Collection[str] | None = None, at_most: int = 5_000_000, *, renamed: bool = False
) -> Found[S]:
    """Visit every state. Stop at the first one that breaks a property.

    Besides the model's invariants there is the property "Finishes": every path without further faults ends, and then
    all items are done. The property holds if steps without faults form no cycle, and every state without such a step is
    finished.

    Args:
        model: the protocol.
        only: names of the properties to test. Defaults to all.
        at_most: the greatest number of states.
        renamed: visit one of the states that differ only in the order of items and processes, see `Model.renamed`. Then
            a path names the items and processes anew in each state. Defaults to False.

    Raises:
        ValueError: there are more than `at_most` states.
    """
    collecting = gc.isenabled()
    gc.disable()  # a search for garbage among millions of tuples takes long, and finds none
    try:
        return _explore(model, only, at_most, renamed)
    finally:
        if collecting:
            gc.enable()


def _explore(model: Model[S], only: Collection[str] | None, at_most: int, renamed: bool) -> Found[S]:
    tested = [(name, holds) for name, holds in model.invariants.items() if only is None or name in only]
    finishes = only is None or FINISHES in only
    first = model.initial()
    number_of = {first: 0}
    states: list[Any] = [first]
    came: list[tuple[int, str, tuple[str, ...]]] = [(-1, "", ())]
    plain: list[list[int]] = []  # the steps without faults
    count = at = 0
    while at < len(states):
        state = states[at]
        for name, holds in tested:
            if not holds(state):
                return Found(len(states), count, name, _path(states, came, at), first)
        ways = []
        for action, who, after in model.steps(state):
            count += 1
            to = number_of.get(after)
            if to is None:
                ordered = model.renamed(after) if renamed else after
                to = number_of.get(ordered)
                if to is None:
                    if len(states) == at_most:
                        raise ValueError(f"more than {at_most:,} states: give smaller bounds")
                    to = number_of[ordered] = len(states)
                    states.append(ordered)
                    came.append((at, action, who))
                number_of[after] = to
            if after.used == state.used and after != state:
                ways.append(to)
        if finishes and not ways and not model.is_finished(state):
            return Found(len(states), count, FINISHES, _path(states, came, at), first)
        plain.append(ways)
        at += 1
    found: Found[S] = Found(len(states), count)
    if finishes and (loops := _in_a_cycle(plain)) is not None:
        found.violated, found.path, found.start = FINISHES, _path(states, came, loops), first
    return found


def _path(states: list[Any], came: list[tuple[int, str, tuple[str, ...]]], at: int) -> list[Any]:
    path = []
    while at:
        before, action, who = came[at]
        path.append((action, who, states[at]))
        at = before
    return path[::-1]


def _in_a_cycle(ways: list[list[int]]) -> int | None:
    """Return a state in a cycle or on the way to one; None if there is no cycle."""
    left = [len(to) for to in ways]
    backwards: list[list[int]] = [[] for _ in ways]
    for at, to in enumerate(ways):
        for each in to:
            backwards[each].append(at)
    ends = [at for at, count in enumerate(left) if not count]
    seen = 0
    while ends:
        seen += 1
        for before in backwards[ends.pop()]:
            left[before] -= 1
            if not left[before]:
                ends.append(before)
    return None if seen == len(ways) else min(at for at, count in enumerate(left) if count)
