"""DelayedFutures: wait until all of some futures are done, or for so long.

Kafka's `DelayedFuturePurgatory`. A future that is done completes it in the thread that finished that future; futures
that are all done at the start complete it in the caller's thread, without anybody waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from wheel_sched.purgatory.operation import DelayedOperation
from wheel_sched.purgatory.purgatory import Purgatory

if TYPE_CHECKING:
    from concurrent.futures._base import DoneAndNotDoneFutures


class DelayedFutures(DelayedOperation):
    """Waits for futures.

    Args:
        futures: what is waited for.
        respond: called once with those that are done and those that are not, as `concurrent.futures.wait` answers.
        timeout_ms: how long to wait.
    """

    __slots__ = ("_futures", "_respond")

    def __init__(
        self,
        futures: Sequence[Future[Any]],
        respond: Callable[[DoneAndNotDoneFutures[Any]], object],
        *,
        timeout_ms: int,
    ) -> None:
        super().__init__(timeout_ms)
        self._futures = futures
        self._respond = respond

    def watch(self, purgatory: Purgatory[Any]) -> bool:
        """Wait in `purgatory`, under a key of its own. Whether all were done already."""
        key = object()
        if purgatory.try_complete_else_watch(self, [key]):
            return True
        for future in self._futures:
            future.add_done_callback(lambda _: purgatory.check_and_complete(key))
        return False

    def try_complete(self) -> bool:
        """See `DelayedOperation`: all are done."""
        return all(future.done() for future in self._futures)

    def on_complete(self) -> None:
        """See `DelayedOperation`."""
        self._respond(wait(self._futures, timeout=0))
