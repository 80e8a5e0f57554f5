"""Judges the order of keys in a history of the retry world, by the promises of docs/ordering.md.

A handler gets a message for the first time only after every earlier message of its key has succeeded or has become a
dead letter. "Earlier" means earlier in the topic. A message that a handler has seen may come again, even after later
messages.

In a queue world, a topic may have two owners for a while, because the store's server has lost the lease, or because its
clock has stepped over the lease's end (`topic_owners`). docs/ordering.md says that either reason can break the order of
the messages that are being handled. So the check skips a pair of messages in one case: both were in the topic before it
had one owner again, and the earlier message had not ended when the topic got the second owner. In a log world the group
assigns the partitions, so a lost lease alone breaks no order, and the check skips nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from retry_topic.simulation.drawing import MAX_ATTEMPTS, TOPIC
from retry_topic.simulation.hostile import number_in
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from retry_topic.simulation.topic_owners import times_of_two_owners
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.store_contents import MemoryContents
from wheel_sched.store.ordering.operations import OrderingInMemory


def order_violations(
    run: RetryWorld,
    calls: Mapping[int, Sequence[HandlerCall]],
    dead: Mapping[int, Sequence[str]],
    undone: Collection[int],
) -> list[str]:
    """Describes each message that a handler got before an earlier message of the same key had ended.

    Args:
        run: the simulated run.
        calls: the calls of the handler, by the number of the message.
        dead: the reasons of the dead letters, by the number of the message.
        undone: the messages about which the server has lost a write. The server may have lost the locks of their keys
            too, so the check skips these keys.
    """
    unjudged = {run.sends[number].key for number in undone}
    two_owners = [] if run.log else times_of_two_owners(run.store)
    found = []
    for key, numbers in _by_key(run).items():
        if key in unjudged:
            continue
        for place, number in enumerate(numbers):
            first = min(calls.get(number, ()), key=lambda call: call.began_ns, default=None)
            if first is None:
                continue
            for earlier in numbers[:place]:
                ends = calls.get(earlier, ()), dead.get(earlier, ())
                entered_ns = max(_entered_ns(run, earlier), _entered_ns(run, number))
                if any(
                    entered_ns < span.stop and span.start <= first.began_ns and not _ended(*ends, span.start)
                    for span in two_owners
                ):
                    continue
                if not _ended(*ends, first.began_ns):
                    found.append(
                        f"order: message {number} came at {first.began_ns // MS} ms, "
                        f"before message {earlier} of its key {key} had ended"
                    )
                    break
    return found


def _by_key(run: RetryWorld) -> dict[str, list[int]]:
    """The messages of each key, in the order of the topic. All records of a key lie in one partition."""
    found: dict[str, list[int]] = {}
    for record in run.broker.records(TOPIC):
        numbers = found.setdefault((record.key or b"").decode(), [])
        number = number_in(record.value)
        if number not in numbers:  # the second record of a producer that repeated a call in doubt
            numbers.append(number)
    return found


def _entered_ns(run: RetryWorld, number: int) -> int:
    """The earliest moment at which a message can have been in its topic, in ns of true time."""
    return run.begun[number][1] + run.sends[number].delay * MS


def _ended(calls: Sequence[HandlerCall], died: Sequence[str], at_ns: int) -> bool:
    """Whether a message had ended at the time `at_ns`: by a success, or as a dead letter after its last attempt.

    `died` has the reasons of its dead letters. The last call of a poison message never ends, so its start counts.
    """
    poison = any("poison:" in reason for reason in died) and len(calls) > 0
    return (poison and max(call.began_ns for call in calls) <= at_ns) or any(
        (call.outcome == "ok" or (died and call.outcome == "failed" and call.attempt == MAX_ATTEMPTS - 1))
        and call.ended_ns <= at_ns
        for call in calls
    )


def key_leaks(run: RetryWorld, undone: Collection[int]) -> list[str]:
    """Check that at the end no key is locked, and that no message is parked behind a key."""
    unjudged = {run.sends[number].key for number in undone}
    if not isinstance(run.store.contents, MemoryContents):
        return []  # no call lists the locks of the scripts; a parked message is a held item, which the checker counts
    return [
        f"leak: key {lock.label or '?'} is closed, its head is {lock.head}, {len(lock.parked)} messages are parked"
        for shard in run.store.contents.backend.shards
        for lock in shard.room(OrderingInMemory).closed.values()
        if lock.label not in unjudged
    ]
