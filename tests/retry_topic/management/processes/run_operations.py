"""Runs durable operations in its own process. The process kills itself at a named point of its third batch.

argv: the address of the store, its number of shards, and the point. "planned": the batch is written down, and nothing
is changed. "counted": the loop guard has counted the replays. "changed": the letters are changed, and their number is
not written down yet.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retry_topic import connect
from retry_topic.management.dead_letter_operations import ReplayDeadLetters
from wheel_sched.management.operations import OperationBatch, OperationRunner, PerformedBatch

address, shards, point = sys.argv[1:]


def reach(here: str, number: int) -> None:
    if here == point and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


class Dying(ReplayDeadLetters):
    """A replay that kills its process."""

    number = 0

    def perform(
        self, arguments: Mapping[str, str], batch: OperationBatch, token: str, *, remembered: bool
    ) -> PerformedBatch:
        self.number = batch.number
        reach("planned", batch.number)
        performed = super().perform(arguments, batch, token, remembered=remembered)
        reach("changed", batch.number)
        return performed

    def _change(self, alterations: Sequence[Any], token: str) -> Any:
        reach("counted", self.number)
        return super()._change(alterations, token)


with connect(address, shards=int(shards)) as connection:
    runner = OperationRunner(connection.store, [Dying(connection)], lease_ms=1_000)
    while True:
        runner.run_once()
