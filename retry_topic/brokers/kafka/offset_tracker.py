"""Which records a group member has handed out, which of them are settled, and how the next owner learns both.

Kafka stores a number and a text for each partition: the committed offset and its metadata. Here the number is the
offset of the first unsettled record. The text describes the records from there on, in runs: `w1:` and then
`<length>.<state>,` for each run. State 0: settled. State n: handed out n - 1 times. So the next member does not hand
out records that were settled out of order, and it continues the delivery count of records whose consumers died. If the
text is lost or cut, messages are delivered again, and none is lost.

`PartitionOffsets` is one partition, `OffsetTracker` all partitions of a member. Neither uses Kafka's client, a thread
or a lock. Source: Confluent's parallel consumer keeps its offset map in the same place.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import TopicPartition

from retry_topic.brokers.protocol import Delivery
from retry_topic.message import Message

RECORD_BYTES = 200  # about what a record takes in memory beside its payload
Place = tuple[str, int]  # topic and partition

MAX_TEXT = 4_000  # a broker's offset.metadata.max.bytes is 4,096

_RUN = re.compile(r"(\d{1,9})\.(\d{1,6})")


@dataclass(slots=True)
class HeldRecord:
    """A record that was handed out. It is kept until the committed offset is after it, even if it is settled."""

    message: Message
    deliveries: int
    since_ms: int
    settled: bool = False


@dataclass(slots=True)
class PartitionOffsets:
    """The offsets of one partition, from the moment it was assigned.

    Args:
        position: the committed offset; records before it are not read.
        text: the metadata of the committed offset: the states of the records from there on, see the module.
        assignment: the number of this assignment; it never repeats. Defaults to 0.
    """

    position: int
    text: str = ""
    assignment: int = 0
    entries: dict[int, HeldRecord] = field(default_factory=dict)  # by offset, ascending
    _runs: list[tuple[int, int, int]] = field(default_factory=list)  # first offset, offset after the last one, state

    def __post_init__(self) -> None:
        at = self.position
        if self.text.startswith("w1:"):
            for length, state in _RUN.findall(self.text):
                self._runs.append((at, at + int(length), int(state)))
                at += int(length)

    def admit(self, offset: int, message: Message, now_ms: int) -> HeldRecord | None:
        """Add a record that is about to be handed out. Returns None if it is already settled."""
        state = self._state_before(offset)
        self.position = offset + 1
        entry = self.entries[offset] = HeldRecord(message, state or 1, now_ms, settled=state == 0)
        return None if entry.settled else entry

    def _state_before(self, offset: int) -> int | None:
        while self._runs and self._runs[0][1] <= offset:
            self._runs.pop(0)
        if self._runs and self._runs[0][0] <= offset:
            return self._runs[0][2]
        return None

    def settle(self, offset: int) -> bool:
        """Mark a record as settled. Returns False if it was not handed out or is already settled."""
        entry = self.entries.get(offset)
        if entry is None or entry.settled:
            return False
        entry.settled = True
        return True

    def unsettle(self, offset: int) -> None:
        """Undo `settle`, because the transaction that should have settled the record was aborted."""
        entry = self.entries.get(offset)
        if entry is not None:
            entry.settled = False

    def forget_settled(self) -> None:
        """Forget the settled records before the first unsettled record. Call this after the offset was committed."""
        while self.entries:
            offset = next(iter(self.entries))
            if not self.entries[offset].settled:
                break
            del self.entries[offset]

    def to_commit(self, *, counted: bool = True) -> tuple[int, str]:
        """The offset of the first unsettled record, and the text that describes the records from there on.

        Args:
            counted: whether the text counts each unsettled record as handed out once more, because the member may die.
                False when the member itself gives the partition up. Defaults to True.
        """
        unsettled = (offset for offset, entry in self.entries.items() if not entry.settled)
        committed = next(unsettled, self.position)
        parts = ["w1:"]
        room = MAX_TEXT - 3
        for length, state in self._state_runs(committed, counted):
            part = f"{length}.{state},"
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
        return committed, "".join(parts) if len(parts) > 1 else ""

    def _state_runs(self, committed: int, counted: bool) -> list[tuple[int, int]]:
        """The runs of records with the same state, from the committed offset on, as pairs (length, state).

        A last run of state 1 (never handed out) is left out.
        """
        stretches = [
            (offset, 0 if entry.settled else max(1, entry.deliveries + counted))  # 0 deliveries after `give_back`
            for offset, entry in self.entries.items()
            if offset >= committed
        ]
        end = self.position
        for first, behind, state in self._runs:
            if behind > self.position:
                stretches.append((max(first, self.position), state))
                end = behind
        found: list[tuple[int, int]] = []
        for (first, state), (behind, _) in pairwise([*stretches, (end, 1)]):
            if found and found[-1][1] == state:
                found[-1] = found[-1][0] + behind - first, state
            else:
                found.append((behind - first, state))
        while found and found[-1][1] == 1:
            found.pop()
        return found


class OffsetTracker:
    """The offsets of all partitions of one group member, and a buffer of fetched records that are not handed out.

    `life` is the number of the member's present stay in the group. When the member leaves its group, the tracker
    forgets everything and raises the number. A partition's *assignment* begins when the member gets the partition and
    ends when the member loses it. A delivery's handle has the number of its assignment. After the assignment's end the
    delivery is no longer valid.

    Threads: it has no lock of its own; the member's lock guards it.

    Args:
        idle_ms: a record without a `beat` for this time is handed out again.
        now_ms: the monotonic clock.
    """

    def __init__(self, idle_ms: int, now_ms: Callable[[], int]) -> None:
        self.life = 0
        self._assignments = 0
        self.partitions: dict[Place, PartitionOffsets] = {}
        # the fetch buffer: offset, record and its bytes, by partition; the next partition to read comes first
        self._fetched: dict[Place, deque[tuple[int, Message, int]]] = {}
        self.fetched = 0
        self.fetched_bytes = 0
        self._idle_ms = idle_ms
        self._now_ms = now_ms

    def __repr__(self) -> str:
        held = sum(len(offsets.entries) for offsets in self.partitions.values())
        counts = f"unsettled={held} fetched={self.fetched}"
        return f"<OffsetTracker life={self.life} partitions={sorted(self.partitions)} {counts}>"

    @property
    def busy(self) -> bool:
        """Whether the tracker holds fetched records, or deliveries whose offsets are not yet committed."""
        return self.fetched > 0 or any(offsets.entries for offsets in self.partitions.values())

    def begin(self) -> None:
        """Forget all partitions and records, because the member has left the group. `life` becomes the next number."""
        self.life += 1
        self.partitions.clear()
        self._fetched.clear()
        self.fetched = self.fetched_bytes = 0

    def open(self, place: Place, offset: int, text: str) -> None:
        """Add a partition that the member got: its committed offset and that offset's metadata."""
        self._assignments += 1
        self.partitions[place] = PartitionOffsets(offset, text, self._assignments)

    def drop(self, places: Iterable[Place]) -> None:
        """Forget partitions that go to other members."""
        for place in places:
            self.partitions.pop(place, None)
            waiting = self._fetched.pop(place, ())
            self.fetched -= len(waiting)
            self.fetched_bytes -= sum(size for _, _, size in waiting)

    def fetch(self, offset: int, message: Message) -> None:
        """Add a fetched record to the buffer."""
        source = message.source
        if source is not None and (source.topic, source.partition) in self.partitions:
            self._fetched.setdefault((source.topic, source.partition), deque()).append(
                (offset, message, size := _size(message))
            )
            self.fetched += 1
            self.fetched_bytes += size

    def take(self, limit: int) -> list[Delivery]:
        """Hand out up to `limit` records; those without a `beat` for `idle_ms` come first."""
        now_ms = self._now_ms()
        taken: list[Delivery] = []
        for place, offset, entry in self._unsettled():
            if len(taken) < limit and now_ms - entry.since_ms >= self._idle_ms:
                entry.deliveries, entry.since_ms = entry.deliveries + 1, now_ms
                taken.append(
                    Delivery(entry.message, (self.partitions[place].assignment, *place, offset), entry.deliveries)
                )
        share = max(1, (limit - len(taken)) // max(1, len(self._fetched)))
        while self._fetched and len(taken) < limit:
            place = next(iter(self._fetched))
            waiting = self._fetched.pop(place)  # moved to the end, so that no partition waits for ever
            for _ in range(min(share, len(waiting), limit - len(taken))):
                offset, message, size = waiting.popleft()
                self.fetched -= 1
                self.fetched_bytes -= size
                offsets = self.partitions[place]
                admitted = offsets.admit(offset, message, now_ms)
                if admitted is not None:
                    taken.append(Delivery(message, (offsets.assignment, *place, offset), admitted.deliveries))
            if waiting:
                self._fetched[place] = waiting
        return taken

    def give_back(self, taken: Sequence[Delivery]) -> None:
        """Take back deliveries that did not reach the caller: the next `take` hands them out."""
        for delivery in taken:
            entry = self.held(delivery)
            if entry is not None:
                entry.deliveries, entry.since_ms = entry.deliveries - 1, entry.since_ms - self._idle_ms

    def lapse_in_s(self) -> float:
        """The seconds until the first unsettled record has had no `beat` for `idle_ms`, at least a millisecond."""
        oldest_ms = min((entry.since_ms for _, _, entry in self._unsettled()), default=self._now_ms())
        return max(1, oldest_ms + self._idle_ms - self._now_ms()) / 1000

    def held(self, delivery: Delivery) -> HeldRecord | None:
        """The record of a delivery. None if the delivery is no longer valid, or settled and forgotten."""
        assignment, topic, partition, offset = delivery.handle
        offsets = self.partitions.get((topic, partition))
        return offsets.entries.get(offset) if offsets is not None and offsets.assignment == assignment else None

    def to_commit(self, places: Iterable[Place], *, counted: bool = True) -> list[TopicPartition]:
        """The offsets to commit for the partitions in `places` from which a record was handed out."""
        found = []
        for topic, partition in sorted(places):
            offsets = self.partitions.get((topic, partition))
            if offsets is not None and offsets.entries:
                found.append(TopicPartition(topic, partition, *offsets.to_commit(counted=counted)))
        return found

    def forget_settled(self, places: Iterable[Place]) -> None:
        """Forget the settled records of partitions whose offsets were committed."""
        for place in places:
            if place in self.partitions:
                self.partitions[place].forget_settled()

    def _unsettled(self) -> Iterator[tuple[Place, int, HeldRecord]]:
        for place, offsets in self.partitions.items():
            for offset, entry in offsets.entries.items():
                if not entry.settled:
                    yield place, offset, entry


def _size(message: Message) -> int:
    """About how many bytes a record takes in memory."""
    headers = sum([len(name) + len(content) for name, content in message.headers])
    return len(message.value) + len(message.key or b"") + headers + RECORD_BYTES
