"""Lanes: the messages of one ordered topic, one lane a key; in each, one is handled at a time, in the order read.

When a message fails, its key is closed in the store before anything else of the key happens; those behind it in the
lane, and all that come later, are parked in the store until its retry has succeeded or was given up. Which keys are
closed is loaded when the topic is taken over and kept here after: while this reader owns the topic nobody else closes
one, so a key that is open costs no call at all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.failing import (
    failed_message,
    is_of_its_place,
    ordered_state,
    parked_message,
    retry_state,
)
from retry_topic.consumer.failure_log import FailureLog
from retry_topic.consumer.heads import Give
from retry_topic.consumer.keeper import Keeper
from retry_topic.consumer.settling import Outcome, Sink
from retry_topic.message import Message
from retry_topic.message.body_codec import encode_body
from retry_topic.message.headers import RetryState
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.policy import Failure
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store import Item
from wheel_sched.store import Outcome as Fate
from wheel_sched.store.key_gates import KeyGates, gate_of, ref_of, route_of
from wheel_sched.store.operations.ordering import Owner

logger = logger_of("retry_topic.consumer")

_FULL_S = 0.5  # how soon a full key is asked again
_PARKED_AT_ONCE = 100  # of a lane, and so bounded in bytes as well


@dataclass(slots=True, eq=False)
class Lane:
    """A key's messages: `running` is in a handler's hands, as its gate's head when `head`."""

    gate: str
    waiting: deque[tuple[Delivery, RetryState]] = field(default_factory=deque)
    running: Delivery | None = None
    head: bool = False
    full_until: float = 0.0


class Lanes(Keeper):
    """The keeper of an ordered topic while we own it.

    Args:
        gates: the ordering keys.
        owner: in whose name we close and park.
        closed: gates that are closed when we begin.
        group: the consumer group.
        secrets: to sign what is parked.
        parked_cap: how many may stand behind one head.
        give: has a delivery handled.
        sink: settles.
        lost: set when the topic is another's, by us or by who renews the lease.
        topic_id: a name for ever of the topic, for the ids of its messages. Defaults to its name.
        topics: of the group. Defaults to those named after it.
        failure_log: told of what cannot be parked. Defaults to one without a hook.
    """

    def __init__(
        self,
        gates: KeyGates,
        owner: Owner,
        closed: Iterable[str],
        *,
        group: str,
        secrets: tuple[bytes, ...],
        parked_cap: int,
        give: Give,
        sink: Sink,
        lost: threading.Event,
        topic_id: str | None = None,
        topics: GroupTopics = NAMED_AFTER_GROUP,
        failure_log: FailureLog | None = None,
    ) -> None:
        super().__init__(gates, sink)
        self._owner = owner
        self._closed = set(closed)
        self._group = group
        self._secrets = secrets
        self._cap = parked_cap
        self._give = give
        self._lost = lost
        self._topic_id = topic_id
        self._topics = topics
        self._failure_log = failure_log or FailureLog()
        self._lanes: dict[str, Lane] = {}
        self._dirty: dict[str, None] = {}
        self._failing: list[tuple[Lane, RetryState, Outcome]] = []
        self._states: dict[object, RetryState] = {}

    # -- notes

    def _came(self, delivery: Delivery) -> None:
        message = delivery.message
        state = retry_state(self._group, message, self._secrets, self._topics)
        if message.key is None or message.source is None:  # no key, no order
            self._give(delivery, state, self._sink)
            return
        gate = gate_of(self._owner.scope, message.key)
        state = ordered_state(self._group, message, state, gate, self._topic_id)
        lane = self._lanes.setdefault(gate, Lane(gate))
        lane.waiting.append((delivery, state))
        self._dirty[gate] = None

    def _ended(self, outcome: Outcome) -> None:
        if self._lost.is_set():
            return  # it comes to whoever owns the topic now
        key = outcome.delivery.message.key
        lane = self._lanes[gate_of(self._owner.scope, key or b"")]
        state = self._states.pop(outcome.delivery.message.source)
        if outcome.ended != "acknowledged":
            self._failing.append((lane, state, outcome))
            return
        if lane.head:
            self._passing.append((lane.gate, state.stem, outcome))
        else:
            self._sink.put(outcome)
        self._free(lane)

    def _free(self, lane: Lane) -> None:
        lane.running, lane.head = None, False
        if lane.waiting:
            self._dirty[lane.gate] = None
        else:
            del self._lanes[lane.gate]

    # -- turns

    def _turn(self) -> None:
        if self._lost.is_set():
            self._lose()
            return
        self._close()
        self._pass_on()  # before parking, or what is next would stand behind what is through
        self._start_or_park()

    def _left(self) -> bool:
        return not self._lost.is_set() and bool(self._passing or self._failing)

    def _close(self) -> None:
        while self._failing and not self._lost.is_set():
            part = self._failing[:200]
            rows = [
                (lane.gate, state.stem, self._placed(one.delivery, state), _label(one.delivery.message))
                for lane, state, one in part
            ]
            fates = self._gates.close(self._owner, rows)
            del self._failing[: len(part)]
            for (lane, _, outcome), fate in zip(part, fates, strict=True):
                if fate is Fate.STALE:
                    self._lose()
                    return
                if fate is Fate.DUPLICATE:  # it had ended before it was read again: this failure is no news
                    self._sink.put(Outcome(outcome.delivery, "acknowledged"))
                else:
                    self._closed.add(lane.gate)
                    self._sink.put(outcome)
                self._free(lane)

    def _start_or_park(self) -> None:
        now = time.monotonic()
        for gate in list(self._dirty):  # one stays in it until it is done: the store may not answer
            lane = self._lanes.get(gate)
            if self._lost.is_set():
                return
            if lane is None or lane.running is not None or not lane.waiting:
                self._dirty.pop(gate, None)
            elif gate not in self._closed:
                self._start(lane)
            elif lane.full_until > now:
                self._wake(lane.full_until)
            else:
                self._park(lane)

    def _start(self, lane: Lane, *, head: bool = False) -> None:
        delivery, state = lane.waiting.popleft()
        lane.running, lane.head = delivery, head
        self._states[delivery.message.source] = state
        self._dirty.pop(lane.gate, None)
        self._give(delivery, state, self)

    def _park(self, lane: Lane) -> None:
        """Park what waits in a closed key's lane, in order; when the key turns out to be open, go on handling."""
        head, left = False, 0  # so many stay in front: the head, and what there is no room for
        for fate in self._fates(lane):
            if fate is Fate.STALE:
                self._lose()
                return
            if fate is Fate.ABSENT:
                self._closed.discard(lane.gate)
                self._start(lane)
                return
            if fate is Fate.WRONG_STATE:
                left += 1
                continue
            delivery, state = lane.waiting[left]
            del lane.waiting[left]
            if fate is Fate.DONE:  # the head itself, read again after a crash: those behind it are parked now
                head, left = True, left + 1
                lane.waiting.appendleft((delivery, state))
            else:
                self._sink.put(Outcome(delivery, "parked" if fate is Fate.HELD else "acknowledged"))
        if head:
            self._start(lane, head=True)
        elif not lane.waiting:
            self._dirty.pop(lane.gate, None)
            del self._lanes[lane.gate]
        else:  # there is more of it, or no room in the line
            lane.full_until = time.monotonic() + _FULL_S if left else 0.0
            self._wake(lane.full_until)

    def _fates(self, lane: Lane) -> Iterator[Fate]:
        """What the store says of those in a lane that are to be parked, one after the other, from the first on.

        When there is no room for them the head may be behind: it was read again with others that are through, and only
        it moves the line. So all are asked for then, as into a line with no room at all, which parks none.
        """
        waiting = list(lane.waiting)
        rows, problem = self._rows(lane, waiting[:_PARKED_AT_ONCE])
        if problem is not None and not rows:
            delivery, state = lane.waiting.popleft()
            self._sink.put(self._unparkable(delivery, state, problem))
            return
        fates = self._gates.park(self._owner, self._cap, rows)
        yield from fates
        if Fate.WRONG_STATE in fates and Fate.DONE not in fates:
            rows, _ = self._rows(lane, waiting[len(rows) :], bodies=False)
            yield from self._gates.park(self._owner, 0, rows)

    def _rows(
        self, lane: Lane, waiting: Iterable[tuple[Delivery, RetryState]], *, bodies: bool = True
    ) -> tuple[list[tuple[str, str, bool, Item]], Rejected | None]:
        """As the store wants them, up to the first that cannot be parked, and why it cannot."""
        rows: list[tuple[str, str, bool, Item]] = []
        refs, route = (ref_of(lane.gate),), route_of(lane.gate)
        for delivery, state in waiting:
            message = delivery.message
            try:
                parked = parked_message(self._group, message, state, self._secrets, self._topics) if bodies else None
                body = b"" if parked is None else encode_body(parked)
                item = Item(f"{state.stem}.0", None, body, message.topic[:249], refs, route)
                item.check()
            except Rejected as problem:
                return rows, problem
            rows.append((lane.gate, state.stem, self._placed(delivery, state), item))
        return rows, None

    def _placed(self, delivery: Delivery, state: RetryState) -> bool:
        return is_of_its_place(self._group, delivery.message, state, self._topic_id)

    def _unparkable(self, delivery: Delivery, state: RetryState, error: Rejected) -> Outcome:
        failure = Failure(error_class="ordering", message=f"it cannot be parked: {error}", verdict="dead")
        forward = failed_message(
            self._group, delivery.message, state, failure, secrets=self._secrets, topics=self._topics
        )
        self._failure_log.tell(delivery.message, forward, state.attempt + 1, failure)
        return Outcome(delivery, "dead", forward)

    def _lose(self) -> None:
        """Another reader owns the topic: nothing of ours is settled any more."""
        self._lost.set()
        self._passing.clear()
        self._failing.clear()
        self._lanes.clear()
        self._dirty.clear()


def _label(message: Message) -> str:
    """The key for people."""
    text = (message.key or b"").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
