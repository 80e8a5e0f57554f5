"""Durable operations: long changes of many things that survive the process that runs them.

`operation.py` has the record and its states, `kind.py` what a package provides for its own changes, `book.py` keeps the
records in the store, `stepping.py` takes one step, and `runner.py` is the thread that takes all of them.
"""

from wheel_sched.management.operations.book import OperationBook
from wheel_sched.management.operations.kind import CountedStep, OperationKind, PerformedBatch, PlannedBatch
from wheel_sched.management.operations.operation import DurableOperation, OperationBatch
from wheel_sched.management.operations.runner import OperationRunner

__all__ = [
    "CountedStep",
    "DurableOperation",
    "OperationBatch",
    "OperationBook",
    "OperationKind",
    "OperationRunner",
    "PerformedBatch",
    "PlannedBatch",
]
