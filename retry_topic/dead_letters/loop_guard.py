"""The loop guard: counts the replays of each message, so that a message that always fails is not replayed for ever.

The store holds the count, beside the attempt count. Headers repeat the count but decide nothing, because every client
that can write to a topic can write headers. A replay raises the count before it sends the message. So a crash in
between costs the message one replay, but the message never exceeds its limit. The store counts the replays of a message
under its name in the store, the *root* (`RetryState.known_as`). The replay of a dead topic gives a message a new id and
so a new root, and writes the count under the new root.

Any thread may use these functions. Each call is one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from retry_topic.message.headers import replays_key
from wheel_sched.store import AttemptCounts, DelayStore

MAX_REPLAYS = 3  # replays of one message before it is held back
MOST_REPLAYS = 100  # the highest limit that somebody may ask for
_REMEMBER_MS = 90 * 86_400_000  # as long as dead letters are kept by default


def replay_counts(store: DelayStore, roots: Sequence[str]) -> list[int]:
    """Read the replay counts of messages.

    Args:
        store: the delay store.
        roots: for each message the name under which the store counts its replays (`RetryState.known_as`).

    Raises:
        StoreError: the store does not answer.
    """
    return AttemptCounts(store).raise_to([(replays_key(root), 0, 0) for root in roots])


def count_replays(store: DelayStore, replays: Sequence[tuple[str, int]], now_ms: int) -> None:
    """Raise the replay counts of messages. No count is lowered; repeating is harmless.

    Args:
        store: the delay store.
        replays: for each message the name under which the store counts its replays (`RetryState.known_as`), and the new
            count.
        now_ms: the store's time. The counts are kept for 90 days from then.

    Raises:
        StoreError: the store does not answer; some messages may be counted.
    """
    AttemptCounts(store).raise_to([(replays_key(root), times, now_ms + _REMEMBER_MS) for root, times in replays])
