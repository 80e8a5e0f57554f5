"""Judges a history of the retry world by the promises of docs/guarantees.md. A history is one run of a scenario.

The checker sees the results that producers got, the calls of handlers, and what is left in the servers. It does not
read any counter of the product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from retry_topic.message.encoding import decode_body
from retry_topic.simulation.drawing import (
    AT_ONCE,
    DELAY_MS,
    GROUP,
    MAX_ATTEMPTS,
    TOPIC,
    draw,
)
from retry_topic.simulation.fair_checker import fair_violations
from retry_topic.simulation.hostile import is_forged, number_in
from retry_topic.simulation.hostile_checker import excused, hostile_violations
from retry_topic.simulation.key_order import key_leaks, order_violations
from retry_topic.simulation.lateness import late_attempts
from retry_topic.simulation.log_server import LogServer
from retry_topic.simulation.repeats import repeats_allowed
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import FORGETTING, Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.store.core.shard import CLAMP_MS

REPORTED_MS = 1_000  # a consumer that no fault hits reports a success within this time


def violations(run: RetryWorld) -> list[str]:
    """The promises that the product broke in this run, one text each. Each text begins with the promise's name."""
    found = [f"broken: {what}" for what in run.world.broken]
    calls: dict[int, list[HandlerCall]] = {}
    for attempt in run.attempts:
        calls.setdefault(attempt.number, []).append(attempt)
    dead, undone = _dead_letters(run), _undone(run) | excused(run)
    found += _lost(run, calls, dead, undone)
    found += _early(run, calls)
    found += _caps(run, calls, dead)
    found += _duplicates(run, calls)
    found += _ended(run, calls, dead)
    found += _released_once(run)
    found += _leaks(run, undone)
    found += hostile_violations(run, calls, _letters(run))
    if run.ordered:
        found += order_violations(run, calls, _letters(run), undone)
        found += key_leaks(run, undone)
    elif run.fair is not None:
        found += run.fair.violations() + fair_violations(run)
    else:
        found += late_attempts(run, calls)
    return found


def _kinds(run: RetryWorld) -> Counter[str]:
    return Counter(fault.kind for fault, _ in run.world.struck)


def _dead_letters(run: RetryWorld) -> dict[int, int]:
    """The number of dead letters in the store, by message number."""
    return {number: len(reasons) for number, reasons in _letters(run).items()}


def _letters(run: RetryWorld) -> dict[int, list[str]]:
    """The reasons of the store's dead letters, by message number. If an item has no body, its id has the number."""
    found: dict[int, list[str]] = {}
    for item in run.store.contents.items():
        if item.state == "dead":
            number = number_in(decode_body(item.body).value) if item.body else _number_in(item.id)
            found.setdefault(number, []).append(item.reason)
    return found


def _number_in(item_id: str) -> int:
    """The message number in an item's id m<number>...; -1 for other ids."""
    found = re.match(r"m(\d+)", item_id)
    return int(found[1]) if found else -1


def _lost(run: RetryWorld, calls: dict[int, list[HandlerCall]], dead: dict[int, int], undone: set[int]) -> list[str]:
    """Check that each message whose send succeeded has an end: a handler succeeds, or the message is a dead letter."""
    found = []
    for number, result in sorted(run.results.items()):
        done = any(one.outcome == "ok" for one in calls.get(number, ()))
        if result.outcome != "sent" or done or number in dead or number in undone:
            continue
        found.append(f"lost: message {number}, sent at {result.at_ns // MS} ms, has neither succeeded nor died")
    return found


def _undone(run: RetryWorld) -> set[int]:
    """The messages about which the store's server has lost a write. `appendfsync everysec` allows such a loss.

    In the ordered worlds all messages with the same keys count too: they wait behind the lost message until a person
    acts (docs/ordering.md).
    """
    named = {int(number) for call in run.store.lost_calls for number in re.findall(r"\bm(\d+)", repr(call))}
    undone = named & run.sends.keys()  # a payload or a token may contain such a text
    for call in run.store.lost_calls:  # the value has the number: a forged record may have another message's id
        operation = call.operation
        stored = [*getattr(operation, "items", ()), *getattr(operation, "found", ())]
        stored += [item for item, _ in getattr(operation, "dead_letters", ())]
        undone |= {number_in(decode_body(item.body).value) for item in stored}
    keys = {run.sends[number].key for number in undone} - {""}
    return undone | {number for number, send in run.sends.items() if send.key in keys}


def _apart_ms(run: RetryWorld) -> int:
    """How far the times of two shards may differ, in ms.

    A shard's time stands still while the server's clock is up to 5 s behind the shard's last call. A shard that was
    called just before a step back keeps the time of that call until the clock has caught up. A shard that was last
    called long before a step of up to 5 s, or just before a longer step, has the clock's new time.
    """
    if run.world.scenario.options["shards"] == 1:
        return 0
    steps = (-fault.amount for fault, _ in run.world.struck if fault.kind == "step-clock")
    return min(CLAMP_MS, sum(step for step in steps if step > 0))


def _early(run: RetryWorld, calls: dict[int, list[HandlerCall]]) -> list[str]:
    """Check that no attempt begins before its delay has passed on the store's clock.

    The delay of the first attempt counts from the send. The delay of a retry counts from the failure before it.
    """
    found = []
    apart_ms = _apart_ms(run)

    def passed_ms(since_ns: int, since_wall_ms: int, one: HandlerCall) -> int:
        """The longest time in ms that may have passed on the store's clock from `since_ns` to the handler's call `one`.

        A delay begins when the store gets the message. If the clock has stepped back after `since_ns`, nobody knows
        whether the store got the message before or after the step. `since_wall_ms`: the store's clock at `since_ns`.
        """
        longest, lowest_ms = 0, since_wall_ms
        for at_ns, before_ms, after_ms in run.store.steps:
            if since_ns <= at_ns <= one.began_ns:
                longest, lowest_ms = max(longest, before_ms - lowest_ms), min(lowest_ms, after_ms)
        return max(longest, one.began_wall_ms - lowest_ms) + apart_ms

    for number, attempts in sorted(calls.items()):
        result, send = run.results.get(number), run.sends[number]
        if is_forged(send):
            continue  # forged headers may name any time
        first = min(attempts, key=lambda one: one.began_ns)
        if result is not None and passed_ms(result.at_ns, result.wall_ms, first) < send.delay:
            found.append(f"early: message {number} came at {first.began_ns // MS} ms, before its delay had passed")
        for one in attempts:
            before = [
                other
                for other in attempts
                if other.outcome == "failed" and other.attempt == one.attempt - 1 and other.ended_ns <= one.began_ns
            ]
            if one.attempt and not before:
                found.append(f"early: message {number} came as attempt {one.attempt} without a failure before it")
            elif before and all(passed_ms(other.ended_ns, other.ended_wall_ms, one) < DELAY_MS for other in before):
                found.append(f"early: message {number}, attempt {one.attempt}, came at {one.began_ns // MS} ms")
    return found


def _caps(run: RetryWorld, calls: dict[int, list[HandlerCall]], dead: dict[int, int]) -> list[str]:
    """Check that no message has more attempts than its policy allows.

    In a run without faults, also check that no message dies before its last attempt or dies twice.
    """
    found = []
    for number, attempts in sorted(calls.items()):
        send, greatest = run.sends[number], max(one.attempt for one in attempts)
        if is_forged(send) or send.kind in ("just-fits", "huge"):
            continue  # see `hostile_checker`
        if greatest >= MAX_ATTEMPTS:
            found.append(f"caps: message {number} came as attempt {greatest}, and {MAX_ATTEMPTS} are allowed")
        # a message that was read together with one that kills its process may be taken for poison too
        poisoned = run.fatal or any(one.outcome == "running" for one in attempts)
        if number in dead and send.fails < MAX_ATTEMPTS and not poisoned and not _kinds(run):
            found.append(f"caps: message {number} died although attempt {send.fails} would succeed")
    for number, count in sorted(dead.items()):
        if count > 1 and not _kinds(run):
            found.append(f"duplicates: message {number} has become {count} dead letters")
    return found


def _duplicates(run: RetryWorld, calls: dict[int, list[HandlerCall]]) -> list[str]:
    """Check that each attempt runs once, and that nothing runs after a success, except what a fault allows."""
    again: list[str] = []
    in_doubt = any(fault.target == "producer" and call.startswith("broker publish") for fault, call in run.world.struck)
    for number, attempts in sorted(calls.items()):
        seen: set[int] = set()
        ended_ns: int | None = None
        send = run.sends[number]
        if in_doubt and (is_forged(send) or send.kind == "duplicated"):
            continue  # its records have no id by which a repeat of the call is known, see `RetryWorld._publish_once`
        twice = send.kind == "duplicated"
        for one in attempts:
            if is_forged(send) and ended_ns is None:
                pass  # a stranger chose the attempt's number, see `hostile_checker`
            elif one.attempt in seen and one.attempt == 0 and twice:
                twice = False  # the first attempt of the second record
            elif one.attempt in seen:
                again.append(f"message {number}, attempt {one.attempt}, at {one.began_ns // MS} ms")
            elif ended_ns is not None and one.began_ns > ended_ns and not _follows_copy(one, attempts, ended_ns):
                again.append(f"message {number}, attempt {one.attempt}, at {one.began_ns // MS} ms after its success")
            seen.add(one.attempt)
            if one.outcome == "ok" and (ended_ns is None or one.ended_ns < ended_ns):
                ended_ns = one.ended_ns
    allowed = AT_ONCE * run.fatal
    for place, (fault, call) in enumerate(run.world.struck):
        allowed += repeats_allowed(fault, call, run.in_hand.get(place, AT_ONCE), run)
    if len(again) > allowed:
        return [f"duplicates: {len(again)} attempts came again, {allowed} may; first: {again[0]}"]
    return []


def _follows_copy(one: HandlerCall, attempts: Sequence[HandlerCall], ended_ns: int) -> bool:
    """Whether `one` retries a copy of its message that began after the success at `ended_ns`, and failed.

    The caller has judged the attempt of that copy already.
    """
    return any(
        copy.attempt == one.attempt - 1 and copy.outcome == "failed" and ended_ns < copy.began_ns < one.began_ns
        for copy in attempts
    )


def _ended(run: RetryWorld, calls: dict[int, list[HandlerCall]], dead: dict[int, int]) -> list[str]:
    """Check that a message that has waited in the store and then succeeded is not retried when a second copy fails.

    The consumer reports the success to the store. The check covers only successes whose report no fault can have hit,
    and copies that began after the report. A message that kills its process is such a fault too.
    """
    died = {one.process for attempts in calls.values() for one in attempts if one.outcome == "running"}
    hit = {fault.target for fault, _ in run.world.struck}
    # over a log, when a producer repeats a call in doubt, the second record is a message of its own
    if "store" in hit or (run.log and hit & {"producer", "broker"}):
        return []
    found = []
    for number, attempts in sorted(calls.items()):
        for success in attempts:
            passed = success.attempt > 0 or run.sends[number].delay > 0
            if (
                run.sends[number].kind != "then-fails"
                or success.outcome != "ok"
                or not passed
                or success.process in died
                or success.process.partition(".")[0] in hit
            ):
                continue
            found += _tried_again(number, success, attempts, number in dead)
    return found


def _tried_again(number: int, success: HandlerCall, attempts: Sequence[HandlerCall], dead: bool) -> list[str]:
    copies = [one for one in attempts if one.outcome == "failed" and one.began_ns > success.ended_ns + REPORTED_MS * MS]
    for copy in copies:
        if dead or any(one.attempt > copy.attempt and one.began_ns > copy.ended_ns for one in attempts):
            return [f"ended: message {number} succeeded at {success.ended_ns // MS} ms, and its copy was tried again"]
    return []


def _released_once(run: RetryWorld) -> list[str]:
    """Check that each retry is released once in a log world. Only a store that has lost writes may release it again.

    A producer that repeats a call in doubt may send a second record. Each record is a message of its own.
    """
    if not run.log or _kinds(run).keys() & FORGETTING:
        return []
    assert isinstance(run.broker, LogServer)  # noqa: S101  # the kind of the world
    records = Counter(number_in(record.value) for record in run.broker.appended.get(TOPIC, ()))
    for number, send in run.sends.items():
        if is_forged(send):  # a forged record in the redelivery topic counts as released
            records[number] += run.tries.get(number, 0) * (2 if "redelivery" in send.kind else 1)
    released = Counter(
        (number_in(record.value), record.header("retry-attempt"))
        for record in run.broker.appended.get(f"{GROUP}.redelivery", ())
    )
    return [
        f"once: message {number}, attempt {(attempt or b'?').decode(errors='replace')}, was released {count} times"
        for (number, attempt), count in released.items()
        if count > records[number]
    ]


def _leaks(run: RetryWorld, undone: set[int]) -> list[str]:
    """Check that at the end the store has only dead letters, and that every record is settled."""
    found = []
    items = (item for item in run.store.contents.items() if not (run.ordered and _number_in(item.id) in undone))
    left = Counter((item.shard, item.state) for item in items if item.state != "dead")
    found += [f"leak: shard {shard} has {count} items {state}" for (shard, state), count in sorted(left.items())]
    found += [f"leak: {topic} has {count} unsettled records" for topic, count in sorted(run.unsettled().items())]
    return found


class RetryKind:
    """The kind of world in which the topics of a retry group are queues."""

    name = "retry"
    packages = ("wheel_sched", "retry_topic")

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Run a scenario. Returns its trace, its violations, and the number of steps. Implements `Kind.run`."""
        history = RetryWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps


class RetryLogKind(RetryKind):
    """The kind of world in which the topics are logs with transactions, like those of Kafka."""

    name = "retry-log"

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed, log=True)


class RetryOrderedKind(RetryKind):
    """The kind of world in which the topics are queues, and the consumers keep the order of keys."""

    name = "retry-ordered"

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed, ordered=True)


class RetryFairKind(RetryKind):
    """The kind of world in which the topics are queues, and retries are shared between the keys of messages."""

    name = "retry-fair"

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed, fair=True)


class RetryLogOrderedKind(RetryKind):
    """The kind of world in which the topics are logs with transactions, and the consumers keep the order of keys."""

    name = "retry-log-ordered"

    def draw(self, seed: int) -> Scenario:
        """Draw the scenario of a seed. Implements `Kind.draw`."""
        return draw(seed, log=True, ordered=True)
