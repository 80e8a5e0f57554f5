"""Finds the first history that breaks a promise without a safeguard, and keeps the results in `found.json`.

A history shows a safeguard if the history breaks a promise only when the safeguard is switched off. `python -m
tests.simulation.find_safeguards` runs this module.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wheel_sched_apscheduler.simulation.scenario import JobStep

from tests.simulation.safeguards.switching import Safeguard, switched_off
from wheel_sched.simulation.__main__ import kinds
from wheel_sched.simulation.runner import Kind, Result, run_scenarios, run_seeds
from wheel_sched.simulation.scenario import Fault, HandIn, Scenario, Step
from wheel_sched.simulation.shrink import shrink

SEEDS = 1_000  # the number of histories in which each safeguard must be noticed
FOUND = Path(__file__).with_name("found.json")
PAGE = Path(__file__).parents[3] / "docs" / "internals" / "simulator-safeguards.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about a safeguard: the history that broke a promise when the safeguard was switched off, if any.

    Args:
        name: the safeguard.
        world: the kind of world.
        seeds: how many histories were run, from seed 0 on, until one broke a promise; None: none of them did.
        invariant: the invariant that the history broke; "" if none.
        steps: the number of sends and faults in the shrunk scenario; None: it was not shrunk.
        scenario: the shrunk scenario; see `scenario_of`.
    """

    name: str
    world: str
    seeds: int | None
    invariant: str = ""
    steps: int | None = None
    scenario: dict[str, Any] | None = None

    @property
    def seed(self) -> int | None:
        """The seed of the history that broke a promise; None if no history broke one."""
        return None if self.seeds is None else self.seeds - 1


def scenario_of(given: dict[str, Any]) -> Scenario:
    """Read a scenario that was stored as JSON."""
    return Scenario(**{**given, "steps": tuple(_class_of(step)(**step) for step in given["steps"])})


def _class_of(step: dict[str, Any]) -> type[Step]:
    """The class of a step that was stored as JSON."""
    return Fault if "target" in step else JobStep if "action" in step else HandIn


def invariant_of(result: Result) -> str:
    """The first invariant that a history broke."""
    return result.violations[0].partition(":")[0]


def slices(kind: Kind, safeguard: Safeguard, seeds: int) -> Iterator[list[int]]:
    """Yield the seeds below `seeds` in lists of growing size. If `safeguard.needs` is not empty, leave out the seeds
    whose histories have none of the faults in it."""
    wanted, needs, size = list(range(seeds)), set(safeguard.needs), 20
    if needs:
        wanted = [seed for seed in wanted if needs & {fault.kind for fault in kind.draw(seed).faults}]
    while wanted:
        yield wanted[:size]
        wanted, size = wanted[size:], min(2 * size, 320)


def first_violation(kind: Kind, safeguard: Safeguard, seeds: int = SEEDS, *, cores: int | None = None) -> Result | None:
    """Return the result of the lowest seed below `seeds` whose history breaks a promise only without the safeguard.
    None: no history does."""
    for part in slices(kind, safeguard, seeds):
        with switched_off(safeguard):
            broken = [result for result in run_seeds(kind, part, cores=cores) if result.violations]
        for result in sorted(broken, key=lambda result: result.scenario.seed):
            (unchanged,) = run_scenarios(kind, [result.scenario])
            if not unchanged.violations:  # otherwise the history shows something else
                return result
    return None


def shows(kind: Kind, safeguard: Safeguard, scenario: Scenario) -> Result | None:
    """Run a history without the safeguard. Returns the result if a promise was broken, and otherwise None."""
    with switched_off(safeguard):
        (result,) = run_scenarios(kind, [scenario])
    return result if result.violations else None


def find(
    safeguard: Safeguard, seeds: int = SEEDS, *, seen: int | None = None, smaller: bool = False
) -> tuple[Finding, Result | None]:
    """Look for a history that breaks a promise without the safeguard. Return the finding, and the history's result.

    Args:
        safeguard: is switched off.
        seeds: how many seeds are tried, from 0 on.
        seen: a seed to try first, because its history once broke a promise without the safeguard. Defaults to
            None: no such seed.
        smaller: whether to shrink the history's scenario. Defaults to False.
    """
    kind = kinds()[safeguard.world]
    result = None if seen is None else shows(kind, safeguard, kind.draw(seen))
    result = result or first_violation(kind, safeguard, seeds)
    if result is None:
        return Finding(safeguard.name, safeguard.world, None), None
    needed = result.scenario.seed + 1
    if not smaller:
        return Finding(safeguard.name, safeguard.world, needed, invariant_of(result)), result
    with switched_off(safeguard):
        result = shrink(kind, result)
    scenario = result.scenario
    kept = asdict(scenario)
    return Finding(safeguard.name, safeguard.world, needed, invariant_of(result), len(scenario.steps), kept), result


def stored_history(kind: Kind, found: Finding | None) -> Scenario | None:
    """The scenario of the history that a finding stores: the shrunk one, otherwise that of the seed.

    A seed draws another history when the world's steps change; a shrunk scenario stays the same. None: no history is
    stored.
    """
    if found is None or (found.scenario is None and found.seed is None):
        return None
    return scenario_of(found.scenario) if found.scenario else kind.draw(found.seed or 0)


def load() -> dict[str, Finding]:
    """Read the results that `save` has written to `found.json`, by name of the safeguard."""
    if not FOUND.exists():
        return {}
    return {entry["name"]: Finding(**entry) for entry in json.loads(FOUND.read_text())}


def save(findings: Sequence[Finding]) -> None:
    """Write the results of the search for histories to `found.json`, one safeguard on each line.

    Fields of a scenario's steps that have their default value are left out.
    """
    ordered = sorted(findings, key=lambda finding: (finding.world, finding.name))
    lines = [json.dumps(_without_usual(asdict(finding))) for finding in ordered]
    FOUND.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _without_usual(entry: dict[str, Any]) -> dict[str, Any]:
    if entry["scenario"] is None:
        return entry
    steps = []
    for step in entry["scenario"]["steps"]:
        usual = {field.name: field.default for field in fields(_class_of(step)) if field.name != "action"}
        steps.append({name: value for name, value in step.items() if name not in usual or value != usual[name]})
    return {**entry, "scenario": {**entry["scenario"], "steps": steps}}


def page(findings: Sequence[Finding], hidden: Sequence[Safeguard]) -> str:
    """The text of the documentation page about safeguards.

    Args:
        findings: the safeguards whose histories were searched, with the results.
        hidden: the safeguards without which few histories or none break a promise.
    """
    shown = [finding for finding in findings if finding.seeds is not None]
    sizes = [finding.steps for finding in shown if finding.steps is not None]
    rows = [
        f"| {one.world} | {one.name} | {one.seeds or 'none'} | {one.invariant} | {one.steps or ''} |"
        for one in sorted(findings, key=lambda one: (one.world, one.seeds or 2 * SEEDS, one.name))
    ]
    median = f"The median of the steps is {statistics.median(sizes):g}.\n\n" if sizes else ""
    return (
        "# Safeguards that the simulator notices\n\n"
        "A safeguard is a line of the product that keeps a promise when something goes wrong. A test switches each\n"
        "of them off, one at a time, and runs [histories](../simulator.md) from seed 0 on until one breaks a promise.\n"
        "So the test shows that the checker can fail.\n\n"
        f"{len(shown)} of {len(findings)} safeguards are noticed within {SEEDS:,} histories. {median}"
        "`python -m tests.simulation.find_safeguards --shrink` writes this page.\n\n"
        "| world | safeguard | histories until it is noticed | invariant | steps after shrinking |\n"
        "|---|---|---:|---|---:|\n" + "\n".join(rows) + "\n\n"
        "## Not noticed\n\n"
        "Without these safeguards, few histories or none break a promise. The table says why. Where it names the\n"
        "specification, that is the one of the [claim protocol](../spec/README.md).\n\n"
        "| world | safeguard | why |\n"
        "|---|---|---|\n" + "\n".join(f"| {one.world} | {one.name} | {one.hidden} |" for one in hidden) + "\n"
    )
