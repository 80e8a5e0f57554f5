"""Checks the invariants of the world of durable operations, and defines its kind.

`watching` notes at once each single change that breaks an invariant. This module checks the other invariants at the
end of a history.
"""

from __future__ import annotations

from collections import Counter

from retry_topic.simulation.operations.drawing import NAME, TOPIC, draw
from retry_topic.simulation.operations.watching import WatchedStore
from retry_topic.simulation.operations.world import OperationsWorld
from wheel_sched.management.operations.operation import DurableOperation
from wheel_sched.management.operations.stepping import REMEMBERED_MS
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.store import DeathGroups


def violations(run: OperationsWorld) -> list[str]:
    """All invariants that a finished history breaks. Those that were noted during the history come first."""
    found = [*run.store.found, *(f"broken: {one}" for one in run.world.broken)]
    for operation in run.operations():
        found += _ended(operation) + _counts(run.store, operation) + _complete(run, operation)
    return found + _lost(run) + _groups(run)


def _ended(operation: DurableOperation) -> list[str]:
    """Check that the operation has ended or waits for a person, and that its counts add up."""
    if operation.state == "failed":
        return [f"failed: operation {operation.id}: {operation.error}"]
    if operation.is_open:
        waits = operation.state in ("ready", "paused") and operation.batch is None
        return [] if waits else [f"late: operation {operation.id} is still {operation.state}: {operation.as_dict()}"]
    if operation.handled != operation.matched:
        return [f"sum: operation {operation.id} has matched {operation.matched}, and handled {operation.as_dict()}"]
    return []


def _counts(store: WatchedStore, operation: DurableOperation) -> list[str]:
    """Check that `done` is the number of letters that the operation changed in the store.

    If a batch is repeated after the store has forgotten its answer, `done` may count a letter that somebody else has
    changed.
    """
    seen = Counter(change.batch for change in store.changes if change.operation == operation.id)
    if operation.batch is not None:
        return []
    extra = 0
    for number in range(1, operation.batches + 1):
        written = store.batches.get((operation.id, number))
        performed = store.performed.get((operation.id, number), [])
        if written is not None and max(performed, default=0) - written.batch.begun_ms > REMEMBERED_MS:
            extra += sum(
                any(one.id == entry[0] and one.operation != operation.id for one in store.changes)
                for entry in written.batch.entries
            )
    if not 0 <= operation.done - sum(seen.values()) <= extra:
        return [f"count: operation {operation.id} counts {operation.done} changed letters, the store saw {dict(seen)}"]
    return []


def _complete(run: OperationsWorld, operation: DurableOperation) -> list[str]:
    """Check that each letter that died before a finished operation was changed by it or by somebody else."""
    store = run.store
    made_ns = store.records[operation.id][0][0]
    between = any(
        death.died_ms <= operation.created_ms and death.at_ns > made_ns
        for deaths in store.deaths.values()
        for death in deaths
    )
    if operation.state != "done" or store.steps or between:
        return []
    changed = {change.id for change in store.changes}
    return [
        f"missed: operation {operation.id} is done, and letter {letter.number} has not been changed"
        for letter in run.letters.values()
        if letter.key == operation.arguments["group"]
        and (deaths := store.deaths.get(f"m{letter.number}.3"))
        and deaths[0].at_ns < made_ns
        and deaths[0].died_ms <= operation.created_ms
        and f"m{letter.number}.3" not in changed
    ]


def _lost(run: OperationsWorld) -> list[str]:
    """Check that each letter is dead, waits, has been handled, or was deleted by somebody who asked for it."""
    kept = {item.id for item in run.store.contents.items()}
    deleted = {change.id for change in run.store.changes if change.verb == "x"}
    ended = {item_id for (item_id, _), outcome in run.sent.items() if outcome == "ok"}
    pending = {item_id for (item_id, _), outcome in run.sent.items() if outcome == "waits"}
    found = [
        f"lost: letter {item_id}" for item_id in run.store.deaths if item_id not in kept | deleted | ended | pending
    ]
    for change in run.store.changes:
        records = run.store.records.get(change.operation)
        if records is None:
            continue
        arguments, letter = records[-1][1].arguments, run.letters[int(change.id[1:].partition(".")[0])]
        if letter.key != arguments["group"]:
            found.append(f"stranger: operation {change.operation} changed {change.id} of another group")
        if (change.verb == "x") != records[-1][1].kind.startswith("delete"):
            what = "deleted" if change.verb == "x" else "replayed"
            found.append(f"lost: operation {change.operation} {what} {change.id}, which is not its task")
    return found


def _groups(run: OperationsWorld) -> list[str]:
    """Check that the counts of the death groups are those of the dead letters."""
    dead = [item.id for item in run.store.contents.items() if item.state == "dead"]
    expected = Counter(run.letters[int(item_id[1:].partition(".")[0])].key for item_id in dead)
    listed = DeathGroups(run.direct).groups()
    counted = {group.group: group.count for group in listed.groups if group.count and group.topic == TOPIC}
    if counted != dict(expected) or listed.uncounted:
        return [f"groups: {counted} are counted, and {dict(expected)} are dead"]
    return []


class OperationsKind:
    """The kind of world in which durable operations change dead letters."""

    name = NAME
    packages = ("wheel_sched", "retry_topic")

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Run a scenario. Returns its trace, its violations, and the number of steps. Implements `Kind.run`."""
        history = OperationsWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps
