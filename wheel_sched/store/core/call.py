"""`Operation`: the base class of all steps that a store performs on a shard. `Call`: a step with its shard.

An operation with a `token` may be repeated after a lost reply. The server executes it once, and answers repeats with
the first answer for a minute.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from wheel_sched.errors import StoreError
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.shard import MemoryShard

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Argument = bytes | str | int

OUTCOME_OF = {ord(outcome.value): outcome for outcome in Outcome}
_counter = itertools.count()
_process = [0, ""]


def new_token() -> str:
    """Make a token for one call. It is unique among all processes, forked ones included."""
    if _process[0] != os.getpid():
        _process[:] = [os.getpid(), os.urandom(8).hex()]
    return f"{_process[1]}{next(_counter):x}"


class Operation(Generic[R_co]):
    """One step on one shard: the arguments of its script, how to read the reply, and the same step in memory.

    The script is the file `<script>.lua` beside the module of the operation. `in_memory` is its twin: change both
    together.

    Attributes:
        script: the name of the script.
        reads: the operation changes nothing, so it works while the namespace is frozen.
        writes: the operation changes data that the durability level protects, so its answer waits for that level.
            False for leases and for figures in reports, whose loss costs a redelivery at most.
        repeatable: a repeat changes nothing more, so the operation may be repeated without a token.
        while_frozen: the operation may change data while the namespace is frozen.
    """

    __slots__ = ()
    script: ClassVar[str]
    reads: ClassVar[bool] = False
    writes: ClassVar[bool]
    repeatable: ClassVar[bool] = False
    while_frozen: ClassVar[bool] = False
    token: str

    def argv(self) -> list[Argument]:
        """The arguments of the script, without time and token."""
        raise NotImplementedError

    def parse(self, reply: Any, shard: int) -> R_co:
        """Read the answer of the operation from the script's reply."""
        raise NotImplementedError

    def in_memory(self, shard: MemoryShard) -> R_co:
        """Execute the operation on a shard in memory, with the same changes and the same answer as the script."""
        raise StoreError(f"the memory store has no {self.script!r}: nothing was changed; use a server for it")


@dataclass(slots=True)
class Call(Generic[R]):
    """An operation addressed to a shard."""

    shard: int
    operation: Operation[R]


Plan = Generator[list[Call[Any]], list[Any], R]
"""A method of the store: the generator yields calls, receives their replies, and returns the answer of the method."""


class SentCalls(Protocol):
    """Calls that were sent and whose answers were not read yet. The sender calls `answers` once."""

    def answers(self) -> list[Any]:
        """Wait for the answers: a value or an exception for each call, in order, as from `execute`."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedCalls:
    """Calls that have their answers already."""

    values: list[Any]

    def answers(self) -> list[Any]:
        return self.values


def outcomes_of(codes: bytes) -> list[Outcome]:
    """Read outcomes from a script's reply: one byte for each outcome."""
    if codes.count(codes[:1]) == len(codes):  # usually all codes are the same
        return [OUTCOME_OF[codes[0]]] * len(codes) if codes else []
    return [OUTCOME_OF[code] for code in codes]


def head_of(value: int) -> int | None:
    """Read the first score of a sorted set from a script's reply. A negative number means an empty set: None."""
    return None if value < 0 else value


def bounded_reason(text: str) -> bytes:
    """A reason as the store keeps it: one line, cut to 500 characters, because every held or dead item has one."""
    return text.replace("\n", " ")[:500].encode("utf-8", "backslashreplace")  # for people, so any text is allowed
