"""Rate limits in memory: the state behind `flow.lua`, and its verbs, step by step the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.rate_limits.values import Admitted, Flow, Limits, WhyNot

_KEEP_MS, _WINDOW_MS = 3_600_000, 10_000  # as in flow.lua

Numbers = dict[str, int]


@dataclass(slots=True)
class Circuit:
    """The circuit of one destination: state "c" closed, "o" open, "h" half open."""

    state: str = ""
    numbers: Numbers = field(default_factory=dict)


class RateLimitsInMemory:
    """The flows of topics and circuits of destinations in a shard, and when each was last used."""

    def __init__(self, shard: MemoryShard) -> None:
        self.topics: dict[str, Numbers] = {}
        self.circuits: dict[tuple[str, str], Circuit] = {}
        self.used: dict[tuple[str, str | None], int] = {}


def _forget(shard: MemoryShard) -> None:
    flows = shard.room(RateLimitsInMemory)
    for name in [name for name, used_ms in flows.used.items() if used_ms <= shard.now_ms - _KEEP_MS]:
        del flows.used[name]
        topic, destination = name
        if destination is None:
            flows.topics.pop(topic, None)
        else:
            flows.circuits.pop((topic, destination), None)


def _slide(numbers: Numbers, now_ms: int, width_ms: int, names: Sequence[str]) -> None:
    window = now_ms // width_ms
    age = window - numbers.get("w", 0)
    if age > 0:
        for name in names:
            numbers[f"{name}1"] = numbers.get(f"{name}0", 0) if age == 1 else 0
            numbers[f"{name}0"] = 0
        numbers["w"] = window


def _faded(numbers: Numbers, now_ms: int, width_ms: int, name: str) -> float:
    return numbers.get(f"{name}0", 0) + numbers.get(f"{name}1", 0) * (1 - (now_ms % width_ms) / width_ms)


def _add(numbers: Numbers, name: str, by: int) -> None:
    numbers[name] = numbers.get(name, 0) + by


def look_at_flows(shard: MemoryShard) -> list[Flow]:
    _forget(shard)
    flows, found = shard.room(RateLimitsInMemory), []
    for topic, destination in sorted(flows.used, key=lambda name: -flows.used[name]):
        if destination is None:
            found.append(Flow(topic, None, "", dict(flows.topics[topic])))
        else:
            circuit = flows.circuits[topic, destination]
            found.append(Flow(topic, destination, circuit.state, dict(circuit.numbers)))
    return found


def _topic(shard: MemoryShard, topic: str) -> Numbers:
    numbers = shard.room(RateLimitsInMemory).topics.setdefault(topic, {})
    shard.room(RateLimitsInMemory).used[topic, None] = shard.now_ms
    _slide(numbers, shard.now_ms, _WINDOW_MS, ("f",))
    return numbers


def _circuit(shard: MemoryShard, topic: str, destination: str) -> Circuit:
    shard.room(RateLimitsInMemory).used[topic, destination] = shard.now_ms
    return shard.room(RateLimitsInMemory).circuits.setdefault((topic, destination), Circuit())


def report(shard: MemoryShard, topic: str, rows: Sequence[tuple[str, int, int, int]]) -> int:
    _forget(shard)
    numbers = _topic(shard, topic)
    for destination, first, succeeded, failed in rows:
        _add(numbers, "f0", first)
        circuit = _circuit(shard, topic, destination)
        results = circuit.numbers
        _slide(results, shard.now_ms, results.get("within", 60_000), ("ok", "bad"))
        _add(results, "ok0", succeeded)
        _add(results, "bad0", failed)
        if circuit.state == "h":
            _add(results, "pok", succeeded)
            _add(results, "pbad", failed)
    return len(rows)


def count_spread(shard: MemoryShard, topic: str, count: int) -> int:
    _forget(shard)
    numbers = _topic(shard, topic)
    _add(numbers, "spread", count)
    return numbers["spread"]


def admit(shard: MemoryShard, topic: str, limits: Limits, wanted: Sequence[tuple[str, int]]) -> list[Admitted]:
    _forget(shard)
    numbers = _topic(shard, topic)
    interval_us, burst, why = limits.interval_us, limits.burst, "rate"
    if limits.share_ppm:
        first_per_s = _faded(numbers, shard.now_ms, _WINDOW_MS, "f") / (_WINDOW_MS / 1000)
        spacing_us = math.ceil(1_000_000 / (limits.least_mhz / 1000 + limits.share_ppm / 1_000_000 * first_per_s))
        if spacing_us > interval_us:
            interval_us, why = spacing_us, "budget"
    if not burst and interval_us:
        burst = max(1, 1_000_000 // interval_us)
    answers = [_one(shard, topic, limits, numbers, *row, interval_us, burst, why) for row in wanted]
    numbers["interval"] = interval_us
    return answers


def _one(
    shard: MemoryShard,
    topic: str,
    limits: Limits,
    numbers: Numbers,
    destination: str,
    wanted: int,
    interval_us: int,
    burst: int,
    why: str,
) -> Admitted:
    granted, first_ms, mark = wanted, 0, "-"
    if limits.trip_ppm:
        granted, first_ms, mark = _pass_circuit(shard, topic, limits, destination, wanted)
    if granted < wanted:
        _add(numbers, "granted", granted)
        step_us = limits.open_ms * 1000 // (wanted - granted)
        return Admitted(granted, first_ms * 1000, step_us, _why(mark))
    first_us, refused = 0, 0
    if interval_us:
        tat_us = max(numbers.get("tat", 0), shard.now_us)
        granted = min(wanted, max(0, (shard.now_us + burst * interval_us - tat_us) // interval_us))
        numbers["tat"] = tat_us + granted * interval_us
        refused = wanted - granted
        if refused:
            line_us = max(numbers.get("line", 0), numbers["tat"] - burst * interval_us)
            first_us = line_us + interval_us
            numbers["line"] = line_us + refused * interval_us
            _add(numbers, why, refused)
    _add(numbers, "granted", granted)
    return Admitted(granted, first_us, interval_us, _why(why if refused else "-"))


def _why(mark: str) -> WhyNot:
    reasons: tuple[WhyNot, ...] = ("rate", "budget", "open", "half-open", "-")
    return next(reason for reason in reasons if reason == mark)


def _pass_circuit(
    shard: MemoryShard, topic: str, limits: Limits, destination: str, wanted: int
) -> tuple[int, int, str]:
    """How many items pass, the due of the others (ms), and why."""
    circuit = _circuit(shard, topic, destination)
    results = circuit.numbers
    _slide(results, shard.now_ms, results.get("within", 60_000), ("ok", "bad"))
    # when the width changes, counting uses the new width
    results["within"], results["w"] = limits.within_ms, shard.now_ms // limits.within_ms
    _turn(circuit, limits, shard.now_ms)
    granted, first_ms, mark = wanted, 0, "-"
    if circuit.state == "o":
        granted, first_ms, mark = 0, results["until"], "open"
    elif circuit.state == "h":
        granted, first_ms, mark = 0, shard.now_ms + -(-limits.open_ms // 10), "half-open"
        if results.get("probe", 0) <= shard.now_ms and wanted > 0:
            granted = 1
            results["probe"] = shard.now_ms + limits.open_ms
            _add(results, "probes", 1)
    _add(results, "refused", wanted - granted)
    return granted, first_ms, mark


def _turn(circuit: Circuit, limits: Limits, now_ms: int) -> None:
    """Change the state of the circuit if necessary."""
    results = circuit.numbers
    if circuit.state == "h":
        if results.get("pbad", 0) > 0:
            _open(circuit, limits, now_ms)
        elif results.get("pok", 0) > 0:
            circuit.state = "c"
            results.update(ok0=0, ok1=0, bad0=0, bad1=0)
    elif circuit.state == "o":
        if now_ms >= results["until"]:
            circuit.state = "h"
            results.update(probe=0, pok=0, pbad=0)
    else:
        circuit.state = "c"
        failed = _faded(results, now_ms, limits.within_ms, "bad")
        total = failed + _faded(results, now_ms, limits.within_ms, "ok")
        if total >= limits.of and failed * 1_000_000 >= limits.trip_ppm * total:
            _open(circuit, limits, now_ms)


def _open(circuit: Circuit, limits: Limits, now_ms: int) -> None:
    circuit.state = "o"
    circuit.numbers["until"] = now_ms + limits.open_ms
    _add(circuit.numbers, "opens", 1)
    circuit.numbers.update(ok0=0, ok1=0, bad0=0, bad1=0, pok=0, pbad=0, probe=0)
