"""Simulated histories of whole systems keep every promise, and a seed always gives the same history."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from wheel_sched_apscheduler.simulation.checker import JobKind
from wheel_sched_celery.simulation.beat_checker import BeatKind
from wheel_sched_celery.simulation.checker import CeleryKind

from retry_topic.simulation.checker import RetryKind, RetryLogKind, RetryLogOrderedKind, RetryOrderedKind
from retry_topic.simulation.operations.checker import OperationsKind
from wheel_sched.simulation.runner import Kind, run_scenarios, run_seeds
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace

pytestmark = pytest.mark.slow

KINDS = {"retry": RetryKind(), "retry-log": RetryLogKind(), "apscheduler": JobKind(), "celery": CeleryKind()}
KINDS |= {"retry-ordered": RetryOrderedKind(), "retry-log-ordered": RetryLogOrderedKind()}
KINDS |= {"operations": OperationsKind(), "celery-beat": BeatKind()}
# Seeds whose histories once showed faults of the product. The comments say what happened. The world `retry`
# has no seeds here: `test_safeguards` keeps its scenarios.
KEPT = {
    # A worker's clock ran 0.1 ms a second faster than the store's, and the worker began tasks too early.
    "celery": (1, 71),
    # - A service that had stood still unlocked the key of a message that another service had taken in.
    # - An owner of a topic continued to read after a lost reply.
    # - A consumer took a topic over too early, by the store's clock.
    # - A read that counted as lost reached the broker late.
    # - An owner that had stood still took its records back after its lease, so the next owner did not read them.
    "retry-ordered": (4299, 116, 3, 101118, 101907, 102365, 101771),
    # Before a batch was repeated, its dead letters had died again, with the same id and version.
    "operations": (168,),
    # A reader that started again confused its new assignments with old ones.
    "retry-log-ordered": (100354,),
    # - The store's clock stepped forward. For a second, delays counted from its time before the step (4038, 4481).
    # - Handlers of lost partitions did not count as a sign of life. So two consumers with long handlers left the group
    #   by turns, and took each other's partitions for ever (4604).
    "retry-log": (4038, 4481, 4604),
    # - Run times were later than the store's clock.
    # - The last run of a job waited because of `max_instances`, and was missed.
    # - A run was put back, and ran beyond `max_instances`.
    # - The answer to a claim arrived after the claim's lease.
    # - A run began although the store had refused to settle it.
    # - A job was resumed to a run time that was claimed meanwhile.
    # - During a shutdown, a settler's loop did not end.
    # - A shutdown did not wait for a store that refused writes.
    # - A run was put back for a minute, because the store's clock was a minute ahead.
    # - After a lost reply, a call that added a job was repeated. It set the job back to a run time that had run.
    # - A job was changed while its last run was under way, by a clock that was ahead.
    # - With delivery at most once, runs were lost without a crash: the store refused writes (309681, 309972), or a pass
    #   of a stock scheduler broke off.
    # - A stock scheduler had two runs of one run time, and one of them was not stored.
    # - A pass of a stock scheduler put a lost run back, and then found it late (401872).
    # - A stock scheduler claimed a run in time. After the run before it, the run was too late (407085).
    # - A job that was stored between the claim of a pass and the end of the pass woke no scheduler (708816).
    # - Two runs that waited because of `max_instances` counted each other, so neither ever ran (720397, 724177).
    # - A short lease ended, because after each failed call its next extension came half a second later (3576).
    "apscheduler": (
        *(2, 13, 18, 390, 745, 2831, 101481, 101316, 200792),
        *(301541, 307424, 309681, 309972, 305383, 401582, 401872, 407085, 708816, 720397, 724177, 3576),
    ),
}

# Seeds in whose histories the checker once reported a fault although an injected fault excused it. The comments say
# what happened.
MISJUDGED = {
    # - A visitor stood still between the time of a new operation and the storing of its record.
    # - A batch was repeated after a minute. Another operation had replayed its letters, and they had died again.
    "operations": (792, 836),
    # - The server lost a claim. The holder of the claim then stored the run beside its job, and died. So the run was
    #   handed out twice: once from the job, and once from the item beside it.
    # - By the clock of a scheduler, a run time was too late when its job was added.
    # - A scheduler whose clock was ahead had claimed later run times and not begun them. Then the job was resumed.
    # - A step of the clock ended the lease of a claim. Two claims later, the run was repeated.
    # - `max_instances` refused a run, because a clock was ahead, or because another run was lost or began late.
    # - A claim arrived late at the store (715075).
    # - A job was rescheduled, and the change took effect two seconds after the time from which it counted (721318).
    "apscheduler": (702953, 703615, 704356, 708258, 711419, 706422, 706590, 707313, 709992, 715075, 721318),
    # While the store was away, a worker went by its own clock, which had gained more than a millisecond.
    "celery": (1025, 3134, 4830),
    # The server lost seconds in which it had sent hundreds of occurrences, because its clock had been set hours ahead.
    "celery-beat": (357, 2342, 3419),
    # - A record without an id came twice, because its producer repeated a call in doubt, or the network did.
    # - The clock stepped back by more than 5 s. For one of two shards, whose last call was old, this was less (1042).
    # - A lost call had a text in it that looked like a message's id (3088).
    "retry": (317, 2005, 2789, 1042, 3088),
    # - A message killed a consumer in the moment in which another message succeeded, before the success was reported.
    # - Many calls in a row were lost, so the pauses before the next ones were long (7115), or the history ended before
    #   a consumer could join (7343).
    "retry-log": (2326, 7115, 7343),
    # The broker was away while the group formed, so a member joined late and partitions moved.
    "retry-log-ordered": (4260,),
}


def command(*options: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "wheel_sched.simulation", *options]
    return subprocess.run(call, capture_output=True, text=True, timeout=300)


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_seed_gives_the_same_history_again(kind: Kind) -> None:
    """In each kind of world, ten seeds give ten different traces, and twenty runs of one of these seeds give the same
    trace."""
    results = list(run_seeds(kind, range(10)))
    assert len({result.digest for result in results}) == 10
    small = [result for result in results if not {"huge", "just-fits"} & {s.kind for s in result.scenario.steps}]
    short = min(small, key=lambda result: (result.steps, result.scenario.seed))
    assert {result.digest for result in run_scenarios(kind, [short.scenario] * 20)} == {short.digest}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_seeds_that_once_failed_keep_every_promise(kind: Kind) -> None:
    """Each seed in KEPT once showed a fault of the product. The fault is fixed, so the seed's history keeps every
    promise."""
    scenarios = [kind.draw(seed) for seed in KEPT.get(kind.name, ())]
    assert [result.violations for result in run_scenarios(kind, scenarios)] == [()] * len(scenarios)


@pytest.mark.parametrize("name", MISJUDGED)
def test_seeds_that_the_checker_once_misjudged_keep_every_promise(name: str) -> None:
    """In the history of each seed in MISJUDGED an injected fault excuses what happened, so the checker must accept
    it."""
    kind = KINDS[name]
    scenarios = [kind.draw(seed) for seed in MISJUDGED[name]]
    assert [result.violations for result in run_scenarios(kind, scenarios)] == [()] * len(scenarios)


class Endless:
    """A kind of world in which a history never ends."""

    name, packages = "endless", ()

    def draw(self, seed: int) -> Scenario:
        return Scenario(seed, self.name, 0, ())

    def run(self, _: Scenario) -> tuple[Trace, list[str], int]:
        while True:
            pass


def test_a_turn_that_does_not_end_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a history runs in an endless loop, its result is a violation that shows the loop's code. The histories after
    it still run."""
    monkeypatch.setattr("wheel_sched.simulation.runner.STUCK_S", 0.3)
    results = run_scenarios(Endless(), [Endless().draw(seed) for seed in range(2)])
    assert [result.violations[0].partition(":")[0] for result in results] == ["stuck"] * 2
    assert "while True" in results[0].violations[0]


def test_the_command_counts_histories_and_replays_one() -> None:
    """With `--json` the command counts histories and violations. With `--seed` it prints the same trace for any
    hash seed."""
    done = command("--world", "retry", "--seeds", "10", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert (figures["histories"], figures["violations"]) == (10, 0)
    first = command("--world", "retry-log", "--seed", "3")
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    call = [sys.executable, "-m", "wheel_sched.simulation", "--world", "retry-log", "--seed", "3"]
    second = subprocess.run(call, capture_output=True, text=True, timeout=60, env=environment)
    assert first.stdout == second.stdout
    assert "retry-log 3: trace " in first.stdout
