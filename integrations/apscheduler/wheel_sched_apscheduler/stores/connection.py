"""A delay store that outlives its namespace: FLUSHALL under a running scheduler takes the jobs, not the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wheel_sched.errors import NamespaceMismatch, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore
from wheel_sched.store.operations import Call

logger = logger_of("wheel_sched.apscheduler")


def _says_absent(answer: Any) -> bool:
    """Also a namespace that is frozen or has other shards is a mismatch; their errors start with another code."""
    return isinstance(answer, NamespaceMismatch) and str(answer).startswith("WSABSENT")


class LastingStore(DelayStore):
    """Makes its namespace again, empty, when it has vanished, and repeats what was refused for that.

    Shard 0 is looked at first: where that is there and of another kind nothing is made, and the refusal stands.
    """

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """As any store's."""
        answers = super().execute(calls)
        refused = [at for at, answer in enumerate(answers) if _says_absent(answer)]
        if refused:
            try:
                DelayStore(self.backend, shards=self.shards).open()
            except StoreError:
                return answers
            logger.warning("The namespace was not there (was the server flushed?); it was made again, empty")
            for at, again in zip(refused, super().execute([calls[at] for at in refused]), strict=True):
                answers[at] = again
        return answers
