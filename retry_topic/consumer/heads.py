"""Heads: what comes back on the redelivery topic for a key with an order, one message at a time.

Before it is handled the store is asked what it is: the head of its key (then the next in line follows when it
succeeds), a second copy of one that has succeeded (it is settled without being handled), or neither: a replayed dead
letter, or one that somebody released by hand; these have lost their place and are handled outside the order.
"""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.keeper import Keeper
from retry_topic.consumer.settling import Outcome, Sink
from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from wheel_sched.store import DelayStore
from wheel_sched.store import Outcome as Fate
from wheel_sched.store.key_gates import KeyGates

Give = Callable[[Delivery, RetryState, Sink], None]
_AT_ONCE = 200


class Heads(Keeper):
    """The keeper of the redelivery topic.

    Args:
        store: where the gates are.
        give: has a delivery handled; its outcome comes back to the sink.
        sink: settles.
        state_of: reads a message's retry state.
    """

    def __init__(self, store: DelayStore, give: Give, sink: Sink, state_of: Callable[[Delivery], RetryState]) -> None:
        super().__init__(KeyGates(store), sink)
        self._give = give
        self._state_of = state_of
        self._unknown: list[tuple[Delivery, RetryState, str]] = []
        self._heads: dict[object, tuple[str, str]] = {}  # by where they were read: gate and stem

    def _came(self, delivery: Delivery) -> None:
        state = self._state_of(delivery)
        if state.gate is None:
            self._give(delivery, state, self._sink)
        else:
            self._unknown.append((delivery, state, state.gate))

    def _ended(self, outcome: Outcome) -> None:
        head = self._heads.pop(_place(outcome.delivery.message), None)
        if head is None or outcome.ended != "acknowledged":
            self._sink.put(outcome)  # what failed stays the head: its retry comes back here
        else:
            self._passing.append((*head, outcome))

    def _turn(self) -> None:
        while self._unknown:
            part = self._unknown[:_AT_ONCE]
            fates = self._gates.look([(gate, state.stem) for _, state, gate in part])
            del self._unknown[: len(part)]
            for (delivery, state, gate), fate in zip(part, fates, strict=True):
                if fate is Fate.DUPLICATE:
                    self._sink.put(Outcome(delivery, "acknowledged"))
                    continue
                if fate is Fate.DONE:
                    self._heads[_place(delivery.message)] = gate, state.stem
                self._give(delivery, state, self)

    def _left(self) -> bool:
        return bool(self._passing or self._unknown)


def _place(message: Message) -> object:
    return message.source or id(message)
