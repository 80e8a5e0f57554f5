"""What a member has in hand: the ledgers of its partitions, and the records fetched for them that nobody has asked for.

It has lives: whenever the member leaves its group, all is forgotten and the next life begins. A partition has terms:
the times from when it is given to the member until it goes. A delivery's handle tells its term; when that is over it is
dead. No lock of its own: the member's guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.ledger import Entry, Ledger
from retry_topic.brokers.protocol import Delivery
from retry_topic.message import Message

Place = tuple[str, int]

RECORD_BYTES = 200  # what a record takes beside its payload, about


class Hands:
    """See the module.

    Args:
        idle_ms: after so much silence a record is handed out again.
        now_ms: monotonic.
    """

    def __init__(self, idle_ms: int, now_ms: Callable[[], int]) -> None:
        self.life = 0
        self._terms = 0
        self.ledgers: dict[Place, Ledger] = {}
        # offset, record and its bytes; whose turn it is comes first
        self._fetched: dict[Place, deque[tuple[int, Message, int]]] = {}
        self.fetched = 0
        self.fetched_bytes = 0
        self._idle_ms = idle_ms
        self._now_ms = now_ms

    def __repr__(self) -> str:
        held = sum(len(ledger.entries) for ledger in self.ledgers.values())
        return f"<Hands life={self.life} partitions={sorted(self.ledgers)} unsettled={held} fetched={self.fetched}>"

    @property
    def busy(self) -> bool:
        """Whether somebody will want something soon: to be handed what is fetched, or to settle what is out."""
        return self.fetched > 0 or any(ledger.entries for ledger in self.ledgers.values())

    def begin(self) -> None:
        """Forget all: the next life."""
        self.life += 1
        self.ledgers.clear()
        self._fetched.clear()
        self.fetched = self.fetched_bytes = 0

    def open(self, place: Place, offset: int, text: str) -> None:
        """A partition is given to the member: its next term, from the committed offset with the text beside it."""
        self._terms += 1
        self.ledgers[place] = Ledger(offset, text, self._terms)

    def drop(self, places: Iterable[Place]) -> None:
        """Partitions are another member's now."""
        for place in places:
            self.ledgers.pop(place, None)
            waiting = self._fetched.pop(place, ())
            self.fetched -= len(waiting)
            self.fetched_bytes -= sum(size for _, _, size in waiting)

    def fetch(self, offset: int, message: Message) -> None:
        """A record was fetched."""
        source = message.source
        if source is not None and (source.topic, source.partition) in self.ledgers:
            self._fetched.setdefault((source.topic, source.partition), deque()).append(
                (offset, message, size := _size(message))
            )
            self.fetched += 1
            self.fetched_bytes += size

    def take(self, limit: int) -> list[Delivery]:
        """Up to `limit` records, those that were silent too long first."""
        now_ms = self._now_ms()
        taken: list[Delivery] = []
        for place, offset, entry in self._unsettled():
            if len(taken) < limit and now_ms - entry.since_ms >= self._idle_ms:
                entry.deliveries, entry.since_ms = entry.deliveries + 1, now_ms
                taken.append(Delivery(entry.message, (self.ledgers[place].term, *place, offset), entry.deliveries))
        share = max(1, (limit - len(taken)) // max(1, len(self._fetched)))
        while self._fetched and len(taken) < limit:
            place = next(iter(self._fetched))
            waiting = self._fetched.pop(place)  # and to the end of the row, so that none waits for ever
            for _ in range(min(share, len(waiting), limit - len(taken))):
                offset, message, size = waiting.popleft()
                self.fetched -= 1
                self.fetched_bytes -= size
                ledger = self.ledgers[place]
                admitted = ledger.admit(offset, message, now_ms)
                if admitted is not None:
                    taken.append(Delivery(message, (ledger.term, *place, offset), admitted.deliveries))
            if waiting:
                self._fetched[place] = waiting
        return taken

    def give_back(self, taken: Sequence[Delivery]) -> None:
        """They were not handed out after all: the next `take` has them at once."""
        for delivery in taken:
            entry = self.entry(delivery)
            if entry is not None:
                entry.deliveries, entry.since_ms = entry.deliveries - 1, entry.since_ms - self._idle_ms

    def lapse_in_s(self) -> float:
        """When the next record will have been silent too long."""
        oldest_ms = min((entry.since_ms for _, _, entry in self._unsettled()), default=self._now_ms())
        return max(1, oldest_ms + self._idle_ms - self._now_ms()) / 1000

    def entry(self, delivery: Delivery) -> Entry | None:
        """What is known of a delivery; None when it is dead, or settled and forgotten."""
        term, topic, partition, offset = delivery.handle
        ledger = self.ledgers.get((topic, partition))
        return ledger.entries.get(offset) if ledger is not None and ledger.term == term else None

    def accounts(self, places: Iterable[Place], *, counted: bool = True) -> list[TopicPartition]:
        """What to commit for partitions of which anything was handed out."""
        found = []
        for topic, partition in sorted(places):
            ledger = self.ledgers.get((topic, partition))
            if ledger is not None and ledger.entries:
                found.append(TopicPartition(topic, partition, *ledger.account(counted=counted)))
        return found

    def forget_settled(self, places: Iterable[Place]) -> None:
        """Where partitions are is committed."""
        for place in places:
            if place in self.ledgers:
                self.ledgers[place].forget_settled()

    def _unsettled(self) -> Iterator[tuple[Place, int, Entry]]:
        for place, ledger in self.ledgers.items():
            for offset, entry in ledger.entries.items():
                if not entry.settled:
                    yield place, offset, entry


def _size(message: Message) -> int:
    """About how many bytes a record takes."""
    headers = sum([len(name) + len(content) for name, content in message.headers])
    return len(message.value) + len(message.key or b"") + headers + RECORD_BYTES
