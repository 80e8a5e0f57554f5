"""What waits to be sent to the store: settlements, and commands with what to do with their answers.

Threads: under the tracker's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from wheel_sched.store import MAX_BATCH, Settlement
from wheel_sched.store.operations import Call
from wheel_sched_apscheduler.occurrence import Occurrence

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class PendingSettlement(NamedTuple):
    """A settlement for the store. `split` = of the job whose run was split off; without `occurrence` = of no run."""

    shard: int
    claim_number: int
    settlement: Settlement
    occurrence: Occurrence | None = None
    split: bool = False


class PendingCommand:
    """One call, the occurrences or settlements that it is about, and what to do with the answer."""

    __slots__ = ("about", "answered", "call")

    def __init__(self, call: Call[Any], about: Sequence[Any], answered: Callable[[Any, Sequence[Any]], None]) -> None:
        self.call = call
        self.about = about
        self.answered = answered


def ignore_answer(_: Any, __: Sequence[Any]) -> None:
    """For a command whose answer changes nothing here."""


def commands_of(
    entries: Mapping[Key, list[Entry]],
    call_of: Callable[[Key, list[Entry]], Call[Any]],
    answered: Callable[[Any, Sequence[Any]], None] = ignore_answer,
) -> list[PendingCommand]:
    """Commands about many entries, at most `MAX_BATCH` of them in each.

    Args:
        entries: by what they have in common: their shard, or their shard and claim.
        call_of: makes the call for one batch.
        answered: what to do with its answer. Defaults to nothing.
    """
    return [
        PendingCommand(call_of(key, batch), batch, answered)
        for key, listed in entries.items()
        for batch in (listed[at : at + MAX_BATCH] for at in range(0, len(listed), MAX_BATCH))
    ]
