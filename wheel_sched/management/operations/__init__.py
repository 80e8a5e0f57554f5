"""Durable operations: long changes of many things, such as dead letters. They survive the process that runs them.

`operation.py` has the record and its states, `kind.py` what a package provides for its own changes, `book.py` keeps the
records in the store, `stepping.py` takes one step, and `runner.py` is the thread that takes all of them.
"""

from wheel_sched.management.operations.book import OperationBook, check_operation_pace
from wheel_sched.management.operations.kind import CountedStep, OperationKind, PerformedBatch, PlannedBatch
from wheel_sched.management.operations.operation import DurableOperation, OperationBatch, OperationStep
from wheel_sched.management.operations.runner import OperationRunner

__all__ = [
    "CountedStep",
    "DurableOperation",
    "OperationBatch",
    "OperationBook",
    "OperationKind",
    "OperationRunner",
    "OperationStep",
    "PerformedBatch",
    "PlannedBatch",
    "check_operation_pace",
]
