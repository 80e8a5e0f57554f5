"""What a package provides so that its changes can be durable operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from wheel_sched.management.operations.operation import OperationBatch


class CountedStep(NamedTuple):
    """One step of counting.

    Args:
        number: how many things this step has counted.
        cursor: where the next step begins; None: everything is counted.
        samples: the first things of this step in words, without payloads. Defaults to none.
    """

    number: int
    cursor: str | None
    samples: tuple[str, ...] = ()


class PlannedBatch(NamedTuple):
    """What the next batch changes.

    Args:
        entries: JSON data for each thing, such as its id and version: enough to change exactly this thing as it is now.
            The runner stores the entries before it changes anything.
        cursor: where the next step begins; None: this was the last.
        left: how many things stay as they are, by reason. Defaults to none.
    """

    entries: tuple[Any, ...]
    cursor: str | None
    left: Mapping[str, int] = {}


class PerformedBatch(NamedTuple):
    """The result of a batch: how many things were changed, and how many were not, by reason."""

    done: int
    left: Mapping[str, int] = {}


class OperationKind(Protocol):
    """A kind of durable operation, such as a replay of dead letters. Several runners may use it at the same time.

    `arguments` are those of the operation. The operation concerns only things from before `until_ms`, in epoch ms.
    """

    @property
    def name(self) -> str:
        """Its name in records, such as "replay-dead-letters"."""
        ...

    def count(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None) -> CountedStep:
        """Count some of the things. One call reads a bounded number."""
        ...

    def plan(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None, budget: int) -> PlannedBatch:
        """Choose at most `budget` things for the next batch, including those that stay as they are (`left`).

        Changes nothing. One call reads a bounded number of things.
        """
        ...

    def perform(
        self, arguments: Mapping[str, str], batch: OperationBatch, token: str, *, remembered: bool
    ) -> PerformedBatch:
        """Change the things of a batch.

        The same batch may come again, because an answer was lost or a runner died.

        Args:
            arguments: those of the operation.
            batch: what to change.
            token: the same whenever this batch comes. The store answers a repeated change with its first answer.
            remembered: whether the store still has that answer. If not, the kind has to find out otherwise which things
                were changed.
        """
        ...
