"""KeyQueues: one queue per key of an ordered partition. One message of each queue is handled at a time.

When a message fails, `KeyQueues` closes its key in the store, and only then settles the message or continues with the
key. The messages behind it, and all later ones of the key, are parked in the store until the retry has succeeded or is
given up. When the reader becomes the owner of the partition's keys, it reads from the store which keys are closed. From
then on `KeyQueues` knows the closed keys, because only the owner can close a key. So a message of an open key needs no
call to the store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.ordered.key_heads import Give
from retry_topic.consumer.ordered.settler_thread import SettlerThread
from retry_topic.consumer.outcome import FailureLog, HandlerOutcome, Sink
from retry_topic.consumer.retry_record import (
    failed_message,
    is_position_derived,
    ordered_state,
    parked_message,
    retry_state,
)
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.policy import Failure
from retry_topic.release.fair import FairKeys
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store import Item, Outcome
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, route_of

logger = logger_of("retry_topic.consumer")

_FULL_S = 0.5  # after this time the store is asked again whether it can park messages of a full key
_PARKED_AT_ONCE = 100  # messages of one queue; this bounds the bytes as well


@dataclass(slots=True, eq=False)
class KeyQueue:
    """The messages of a key. `running` is the one that is handled now. `head`: whether the key is closed and `running`
    is its head."""

    key_lock: str
    waiting: deque[tuple[Delivery, RetryState]] = field(default_factory=deque)
    running: Delivery | None = None
    head: bool = False
    full_until: float = 0.0


class KeyQueues(SettlerThread):
    """The queues of the keys of one ordered partition.

    Args:
        locks: the key locks in the store.
        owner: the owner in whose name keys are closed and messages parked.
        closed: the keys that are closed at the beginning.
        group: the consumer group.
        secrets: the first one signs parked messages.
        parked_cap: how many messages may be parked behind one head.
        give: hands a delivery to the handlers.
        sink: settles outcomes.
        lost: an event that is set when another reader owns the partition. This class sets it, or the thread that renews
            the lease.
        topic_id: the permanent id of the topic, for the ids of its messages. Defaults to the topic's name.
        topics: the group's own topics. Defaults to those named after it.
        fair_keys: gives parked messages their fair keys.
        failure_log: gets each message that cannot be parked. Defaults to a log that calls no `on_failure` hook.
    """

    def __init__(
        self,
        locks: OrderedKeys,
        owner: Owner,
        closed: Iterable[str],
        *,
        group: str,
        secrets: tuple[bytes, ...],
        parked_cap: int,
        give: Give,
        sink: Sink,
        lost: threading.Event,
        fair_keys: FairKeys,
        topic_id: str | None = None,
        topics: GroupTopics = NAMED_AFTER_GROUP,
        failure_log: FailureLog | None = None,
    ) -> None:
        super().__init__(locks, sink)
        self._owner = owner
        self._closed = set(closed)
        self._group = group
        self._secrets = secrets
        self._cap = parked_cap
        self._give = give
        self._lost = lost
        self._fair_keys = fair_keys
        self._topic_id = topic_id
        self._topics = topics
        self._failure_log = failure_log or FailureLog()
        self._queues: dict[str, KeyQueue] = {}
        self._dirty: dict[str, None] = {}
        self._failing: list[tuple[KeyQueue, RetryState, HandlerOutcome]] = []
        self._states: dict[object, RetryState] = {}

    # -- what readers and handlers report

    def _came(self, delivery: Delivery) -> None:
        message = delivery.message
        state = retry_state(self._group, message, self._secrets, self._topics)
        if message.key is None or message.source is None:  # no key, no order
            self._give(delivery, state, self._sink)
            return
        key_lock = lock_of(self._owner.scope, message.key)
        state = ordered_state(self._group, message, state, key_lock, self._topic_id)
        queue = self._queues.setdefault(key_lock, KeyQueue(key_lock))
        queue.waiting.append((delivery, state))
        self._dirty[key_lock] = None

    def _ended(self, outcome: HandlerOutcome) -> None:
        if self._lost.is_set():
            return  # the partition's present reader gets the delivery
        key = outcome.delivery.message.key
        queue = self._queues[lock_of(self._owner.scope, key or b"")]
        state = self._states.pop(outcome.delivery.message.source)
        if outcome.ended != "acknowledged":
            self._failing.append((queue, state, outcome))
            return
        if queue.head:
            self._succeeded.append((queue.key_lock, state.id_base, outcome))
        else:
            self._sink.put(outcome)
        self._free(queue)

    def _free(self, queue: KeyQueue) -> None:
        queue.running, queue.head = None, False
        if queue.waiting:
            self._dirty[queue.key_lock] = None
        else:
            del self._queues[queue.key_lock]

    # -- turns

    def _turn(self) -> None:
        if self._lost.is_set():
            self._lose()
            return
        self._close()
        self._pass_on()  # before parking: otherwise a message would be parked behind one that has succeeded
        self._start_or_park()

    def _left(self) -> bool:
        return not self._lost.is_set() and bool(self._succeeded or self._failing)

    def _close(self) -> None:
        while self._failing and not self._lost.is_set():
            part = self._failing[:200]
            rows = [
                (
                    queue.key_lock,
                    state.id_base,
                    self._position_derived(one.delivery, state),
                    _label(one.delivery.message),
                )
                for queue, state, one in part
            ]
            answers = self._locks.close(self._owner, rows)
            del self._failing[: len(part)]
            for (queue, _, outcome), answer in zip(part, answers, strict=True):
                if answer is Outcome.STALE:
                    self._lose()
                    return
                if answer is Outcome.DUPLICATE:  # the message had ended before this copy was read: ignore the failure
                    self._sink.put(HandlerOutcome(outcome.delivery, "acknowledged"))
                else:
                    self._closed.add(queue.key_lock)
                    self._sink.put(outcome)
                self._free(queue)

    def _start_or_park(self) -> None:
        now = time.monotonic()
        for key_lock in list(self._dirty):  # a key leaves `_dirty` when its work is done: the store may not answer
            queue = self._queues.get(key_lock)
            if self._lost.is_set():
                return
            if queue is None or queue.running is not None or not queue.waiting:
                self._dirty.pop(key_lock, None)
            elif key_lock not in self._closed:
                self._start(queue)
            elif queue.full_until > now:
                self._wake(queue.full_until)
            else:
                self._park(queue)

    def _start(self, queue: KeyQueue, *, head: bool = False) -> None:
        delivery, state = queue.waiting.popleft()
        queue.running, queue.head = delivery, head
        self._states[delivery.message.source] = state
        self._dirty.pop(queue.key_lock, None)
        self._give(delivery, state, self)

    def _park(self, queue: KeyQueue) -> None:
        """Park the waiting messages of a closed key, in order. If the key is open by now, handle them."""
        head, left = False, 0  # how many stay in front: the head, and messages for which there is no room
        for answer in self._park_answers(queue):
            if answer is Outcome.STALE:
                self._lose()
                return
            if answer is Outcome.ABSENT:
                self._closed.discard(queue.key_lock)
                self._start(queue)
                return
            if answer is Outcome.WRONG_STATE:
                left += 1
                continue
            delivery, state = queue.waiting[left]
            del queue.waiting[left]
            if (
                answer is Outcome.DONE
            ):  # this is the head, which was read again after a crash: the messages behind it are parked now
                head, left = True, left + 1
                queue.waiting.appendleft((delivery, state))
            else:
                self._sink.put(HandlerOutcome(delivery, "parked" if answer is Outcome.HELD else "acknowledged"))
        if head:
            self._start(queue, head=True)
        elif not queue.waiting:
            self._dirty.pop(queue.key_lock, None)
            del self._queues[queue.key_lock]
        else:  # there are more messages, or there is no room for them
            queue.full_until = time.monotonic() + _FULL_S if left else 0.0
            self._wake(queue.full_until)

    def _park_answers(self, queue: KeyQueue) -> Iterator[Outcome]:
        """Ask the store to park the messages of a queue. Yields the store's answer for each message, in order.

        When as many messages are parked as the cap allows, the store parks no more before the key's head has ended. The
        head may itself be in this queue: after a crash the broker delivers it again, and before it messages that had
        ended already. So this method then asks about the remaining messages too, with a cap of 0. The store parks none
        of them, but says which one is the head.
        """
        waiting = list(queue.waiting)
        rows, problem = self._rows(queue, waiting[:_PARKED_AT_ONCE])
        if problem is not None and not rows:
            delivery, state = queue.waiting.popleft()
            self._sink.put(self._unparkable(delivery, state, problem))
            return
        answers = self._locks.park(self._owner, self._cap, rows)
        yield from answers
        if Outcome.WRONG_STATE in answers and Outcome.DONE not in answers:
            rows, _ = self._rows(queue, waiting[len(rows) :], bodies=False)
            yield from self._locks.park(self._owner, 0, rows)

    def _rows(
        self, queue: KeyQueue, waiting: Iterable[tuple[Delivery, RetryState]], *, bodies: bool = True
    ) -> tuple[list[tuple[str, str, bool, Item]], Rejected | None]:
        """The rows for a call of `park`, up to the first message that cannot be parked; and why it cannot, or None.

        `bodies`: False leaves the items' bodies empty, for a call that parks nothing.
        """
        rows: list[tuple[str, str, bool, Item]] = []
        ref, route = ref_of(queue.key_lock), route_of(queue.key_lock)
        for delivery, state in waiting:
            message = delivery.message
            try:
                parked = parked_message(self._group, message, state, self._secrets, self._topics) if bodies else None
                body = b"" if parked is None else encode_body(parked)
                fair, _ = ((), None) if parked is None else self._fair_keys.place_of(message)
                item = Item(f"{state.id_base}.0", None, body, message.topic[:249], (*fair, ref), route)
                item.check()
            except Rejected as problem:
                return rows, problem
            rows.append((queue.key_lock, state.id_base, self._position_derived(delivery, state), item))
        return rows, None

    def _position_derived(self, delivery: Delivery, state: RetryState) -> bool:
        return is_position_derived(self._group, delivery.message, state, self._topic_id)

    def _unparkable(self, delivery: Delivery, state: RetryState, error: Rejected) -> HandlerOutcome:
        failure = Failure(error_class="ordering", message=f"it cannot be parked: {error}", verdict="dead")
        forward = failed_message(
            self._group, delivery.message, state, failure, secrets=self._secrets, topics=self._topics
        )
        self._failure_log.write(delivery.message, forward, state.attempt + 1, failure)
        return HandlerOutcome(delivery, "dead", forward)

    def _lose(self) -> None:
        """Stop settling, because another reader owns the partition."""
        self._lost.set()
        self._succeeded.clear()
        self._failing.clear()
        self._queues.clear()
        self._dirty.clear()


def _label(message: Message) -> str:
    """The message's key as text for people."""
    text = (message.key or b"").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
