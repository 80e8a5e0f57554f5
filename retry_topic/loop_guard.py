"""The loop guard: how often a message was sent through again, so that a poisoned one cannot circle for ever.

The count is on record in the delay store, beside the attempts; headers tell of it and decide nothing, since whoever can
write to a topic can write those. A replay raises it before anything is sent: a crash in between costs one replay of the
message's, never its limit. Any thread; a call is one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store import AttemptCounts, DelayStore

MAX_REPLAYS = 3  # replays of one message before it is held back
_REMEMBER_MS = 90 * 86_400_000  # as long as dead letters are kept by default


class LoopGuard:
    """The counts of a store.

    Args:
        store: the one that the group's service takes failed messages into.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def counts(self, roots: Sequence[str]) -> list[int]:
        """How often these messages were replayed, by the ids that all their attempts share.

        Raises:
            StoreError: the store does not answer.
        """
        return AttemptCounts(self._store).raise_to([(f"{root}!", 0, 0) for root in roots])

    def count(self, replays: Sequence[tuple[str, int]], now_ms: int) -> None:
        """These messages were replayed so often by now; a count is never lowered, so that this may be repeated.

        Raises:
            StoreError: the store does not answer: some may be counted.
        """
        AttemptCounts(self._store).raise_to([(f"{root}!", times, now_ms + _REMEMBER_MS) for root, times in replays])
