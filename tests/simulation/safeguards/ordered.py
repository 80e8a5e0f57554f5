"""Safeguards of ordering keys."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

ORDERED = "retry_topic.consumer.ordered"
KEYS = "wheel_sched.store.ordering.operations"
SAFEGUARDS = [
    Safeguard(
        "one message of a key is handled at a time",
        f"{ORDERED}.key_queues:KeyQueues._start_or_park",
        "queue.running is not None or ",
        "",
        "retry-ordered",
    ),
    Safeguard(
        "a failure closes the key before the next message",
        f"{ORDERED}.key_queues:KeyQueues._close",
        "self._closed.add(queue.key_lock)",
        "pass",
        "retry-ordered",
    ),
    Safeguard(
        "a new owner loads the closed keys",
        f"{ORDERED}.assignment:PartitionAssignment._owned",
        "for key in self._locks.closed(self._scope)",
        "for key in ()",
        "retry-ordered",
    ),
    Safeguard(
        "a success of the head releases the next message",
        f"{KEYS}:PassHeads.in_memory",
        "room.next_of_key(lock)",
        "pass",
        "retry-ordered",
    ),
    Safeguard(
        "parked messages are released in their order",
        f"{KEYS}:OrderingInMemory.next_of_key",
        "next(iter(found.parked))",
        "next(reversed(found.parked))",
        "retry-ordered",
    ),
    Safeguard(
        "only the head's success releases the next message",
        f"{KEYS}:PassHeads.in_memory",
        'not (found.head in (base, UNKNOWN_HEAD) or self.how == "*")',
        "False",
        "retry-ordered",
    ),
    Safeguard(
        "an ordered topic has one owner at a time",
        f"{KEYS}:OwnScope.in_memory",
        "if until_ms > shard.now_ms and holder != self.holder:",
        "if False:",
        "retry-ordered",
    ),
    Safeguard(
        "after a lost reply the owner reads no more",
        f"{ORDERED}.leased_topic:OrderedTopic._poll",
        " and not self._in_doubt",
        "",
        "retry-ordered",
    ),
    Safeguard(
        "after a lost reply the owner gives up the topic when its records come again",
        f"{ORDERED}.leased_topic:OrderedTopic._read_as_owner",
        "if empty and (left_s <= 0 or not self._stopping.wait(left_s)):",
        "if empty:",
        "retry-ordered",
    ),
    Safeguard(
        "an owner with unsettled messages does not give up the topic",
        f"{ORDERED}.leased_topic:OrderedTopic._read_as_owner",
        "if empty and (left_s <= 0 or not self._stopping.wait(left_s)):",
        "if True:",
        "retry-ordered",
    ),
    Safeguard(
        "a consumer waits for the end of another owner's lease by its own clock",
        f"{ORDERED}.leased_topic:OrderedTopic._read",
        " and asked >= self._taken_until",
        "",
        "retry-ordered",
    ),
]
