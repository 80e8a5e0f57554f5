"""Starts the thread that runs durable operations in the process of the dashboard."""

from __future__ import annotations

from retry_topic.dashboard.opening import connection_of, settings_of
from retry_topic.management.dead_letter_operations import DeleteDeadLetters, ReplayDeadLetters
from retry_topic.management.opening import secrets_of
from retry_topic.management.operation_words import outcome
from wheel_sched.dashboard import Dashboard
from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.management.operations import DurableOperation, OperationRunner

_NAME = "operations"


def runner_of(dashboard: Dashboard) -> OperationRunner:
    """What runs this dashboard's durable operations. The first call starts its thread; the dashboard closes it."""
    return dashboard.kept(_NAME, _make).start()


def start_runner(dashboard: Dashboard) -> None:
    """Start to run durable operations, unless visitors of this dashboard may only read."""
    if dashboard.config.right != "read":
        runner_of(dashboard)


def _make(dashboard: Dashboard) -> OperationRunner:
    connection, settings, audit = connection_of(dashboard), settings_of(dashboard), AuditLog(dashboard.store)

    def write_down(ended: DurableOperation) -> None:
        who = ended.confirmed_by or ended.who
        audit.end(audit.begin(who, ended.kind, f"operation {ended.id} has ended", ended.arguments), outcome(ended))

    kinds = (ReplayDeadLetters(connection, lambda: secrets_of(settings)), DeleteDeadLetters(connection))
    return OperationRunner(dashboard.store, kinds, on_end=write_down)
