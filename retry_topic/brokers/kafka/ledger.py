"""The ledger of one partition: what a member was handed, what of it is settled, and how both are told to its successor.

Kafka knows one number per partition, the committed offset, and a text beside it. The number is the first record that is
not settled; the text holds what lies behind it in runs of records, `w1:` and then `<length>.<state>,` in turn: state 0
is settled, n was handed out n - 1 times. So a successor hands nothing out twice that was settled out of order, and a
record whose consumers die is counted. A text that is lost or cut costs repeats, never a message.

Pure: no Kafka, no clock, no lock. Source: Confluent's parallel consumer keeps its offset map in the same place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from retry_topic.message import Message

MAX_TEXT = 4_000  # a broker's offset.metadata.max.bytes is 4,096

_RUN = re.compile(r"(\d{1,9})\.(\d{1,6})")


@dataclass(slots=True)
class Entry:
    """A record in somebody's hands, or settled before an earlier one was."""

    message: Message
    deliveries: int
    since_ms: int
    settled: bool = False


@dataclass(slots=True)
class Ledger:
    """One partition from the moment it was assigned.

    Args:
        position: the committed offset, the first that may come.
        text: what was committed beside it.
        term: tells it from the other times that the partition was here. Defaults to 0.
    """

    position: int
    text: str = ""
    term: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)  # by offset, ascending
    _runs: list[tuple[int, int, int]] = field(default_factory=list)  # first offset, behind the last one, state

    def __post_init__(self) -> None:
        at = self.position
        if self.text.startswith("w1:"):
            for length, state in _RUN.findall(self.text):
                self._runs.append((at, at + int(length), int(state)))
                at += int(length)

    def admit(self, offset: int, message: Message, now_ms: int) -> Entry | None:
        """A record that is about to be handed out; None when it is settled already."""
        state = self._state_before(offset)
        self.position = offset + 1
        entry = self.entries[offset] = Entry(message, state or 1, now_ms, settled=state == 0)
        return None if entry.settled else entry

    def _state_before(self, offset: int) -> int | None:
        while self._runs and self._runs[0][1] <= offset:
            self._runs.pop(0)
        if self._runs and self._runs[0][0] <= offset:
            return self._runs[0][2]
        return None

    def settle(self, offset: int) -> bool:
        """Mark a record as settled; False when it is not in anybody's hands."""
        entry = self.entries.get(offset)
        if entry is None or entry.settled:
            return False
        entry.settled = True
        return True

    def unsettle(self, offset: int) -> None:
        """Take `settle` back: the transaction it was part of was aborted."""
        entry = self.entries.get(offset)
        if entry is not None:
            entry.settled = False

    def forget_settled(self) -> None:
        """Let go of what is settled without a gap from the front; call it once that is committed."""
        while self.entries:
            offset = next(iter(self.entries))
            if not self.entries[offset].settled:
                break
            del self.entries[offset]

    def account(self, *, counted: bool = True) -> tuple[int, str]:
        """Offset and text to commit.

        Args:
            counted: whether what is in hand counts as handed out; not when it is given back in good order. Defaults to
                True.
        """
        unsettled = (offset for offset, entry in self.entries.items() if not entry.settled)
        committed = next(unsettled, self.position)
        parts = ["w1:"]
        room = MAX_TEXT - 3
        for length, state in self._told(committed, counted):
            part = f"{length}.{state},"
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
        return committed, "".join(parts) if len(parts) > 1 else ""

    def _told(self, committed: int, counted: bool) -> list[tuple[int, int]]:
        """Runs from the committed offset on: (length, state), those of the same state in one."""
        stretches = [
            (offset, 0 if entry.settled else entry.deliveries + counted)
            for offset, entry in self.entries.items()
            if offset >= committed
        ]
        end = self.position
        for first, behind, state in self._runs:
            if behind > self.position:
                stretches.append((max(first, self.position), state))
                end = behind
        told: list[tuple[int, int]] = []
        for (first, state), (behind, _) in pairwise([*stretches, (end, 1)]):
            if told and told[-1][1] == state:
                told[-1] = told[-1][0] + behind - first, state
            else:
                told.append((behind - first, state))
        while told and told[-1][1] == 1:
            told.pop()
        return told
