"""KeyHeads: the messages of ordered keys that come back on the redelivery topic, one per key at a time.

Before a message is handled, the store says which of three kinds it is:

- the head of its key. After its success, the next parked message follows
- a second copy of a message that has succeeded. It is settled and not handled
- a replayed dead letter, or a message that an operator released by hand. It has lost its place, so it is handled
  outside the order
"""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.ordered.settler_thread import SettlerThread
from retry_topic.consumer.outcome import HandlerOutcome, Sink
from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from wheel_sched.store import DelayStore, Outcome
from wheel_sched.store.ordering import OrderedKeys

Give = Callable[[Delivery, RetryState, Sink], None]
_AT_ONCE = 200


class KeyHeads(SettlerThread):
    """Handles the messages of ordered keys on the redelivery topic, one per key at a time.

    Args:
        store: the delay store, which has the key locks.
        give: hands a delivery to the handlers, together with the sink for its outcome.
        sink: settles outcomes.
        state_of: reads the retry state of a message.
    """

    def __init__(self, store: DelayStore, give: Give, sink: Sink, state_of: Callable[[Delivery], RetryState]) -> None:
        super().__init__(OrderedKeys(store), sink)
        self._give = give
        self._state_of = state_of
        self._unknown: list[tuple[Delivery, RetryState, str]] = []
        self._heads: dict[object, tuple[str, str]] = {}  # for each record's place: key lock and id base

    def _came(self, delivery: Delivery) -> None:
        state = self._state_of(delivery)
        if state.key_lock is None:
            self._give(delivery, state, self._sink)
        else:
            self._unknown.append((delivery, state, state.key_lock))

    def _ended(self, outcome: HandlerOutcome) -> None:
        head = self._heads.pop(_place(outcome.delivery.message), None)
        if head is None or outcome.ended != "acknowledged":
            self._sink.put(outcome)  # a failed message stays the head: its retry comes back here
        else:
            self._succeeded.append((*head, outcome))

    def _turn(self) -> None:
        while self._unknown:
            part = self._unknown[:_AT_ONCE]
            answers = self._locks.look([(key_lock, state.id_base) for _, state, key_lock in part])
            del self._unknown[: len(part)]
            for (delivery, state, key_lock), answer in zip(part, answers, strict=True):
                if answer is Outcome.DUPLICATE:
                    self._sink.put(HandlerOutcome(delivery, "acknowledged"))
                    continue
                if answer is Outcome.DONE:
                    self._heads[_place(delivery.message)] = key_lock, state.id_base
                self._give(delivery, state, self)

    def _left(self) -> bool:
        return bool(self._succeeded or self._unknown)


def _place(message: Message) -> object:
    return message.source or id(message)
