"""Rate limits of topics and circuits of destinations. All dispatchers share them.

The circuit of a destination that fails opens: then the store lets no release through. After a while the circuit is half
open: it lets one release through as a probe. If the probe succeeds, the circuit closes.

The state of a topic lies in one shard, so a rate limit holds for the whole namespace. Each call is one round trip and
may be repeated: when the reply of an `admit` is lost, at most the releases that it granted are wasted. A repeated
`report` or `spread` counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from wheel_sched.store.core.call import Argument, Operation, Plan
from wheel_sched.store.core.delay_store import Capability, blocking
from wheel_sched.store.core.items import MAX_BATCH, decode_text, encode_text
from wheel_sched.store.core.plans import Plans, shard_of
from wheel_sched.store.core.shard import MemoryShard

WhyNot = Literal["rate", "budget", "open", "half-open", "-"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a topic's releases; 0 turns off a limit.

    Args:
        interval_us: at most one release in this many microseconds.
        burst: how many releases may come at once after a pause; 0 = as many as one second allows.
        share_ppm: the budget: at most this many releases per million first attempts.
        least_mhz: the budget is at least this many releases per 1,000 seconds, even without first attempts.
        trip_ppm: failures per million attempts of a destination that open its circuit.
        of: number of results that the circuit needs before it can open.
        within_ms: the window in which results are counted.
        open_ms: how long the circuit stays open, and how long it waits for the result of a probe.
    """

    interval_us: int = 0
    burst: int = 0
    share_ppm: int = 0
    least_mhz: int = 0
    trip_ppm: int = 0
    of: int = 0
    within_ms: int = 0
    open_ms: int = 0


class Admitted(NamedTuple):
    """The answer for a destination: `granted` items may be released now; each further item must wait.

    The first further item is asked about again at `first_us` (microseconds since 1970), the next ones `step_us` apart.
    While a circuit is not closed, they may be refused again. `why` says what they wait for; "-": no item has to wait.
    """

    granted: int
    first_us: int
    step_us: int
    why: WhyNot


class Flow(NamedTuple):
    """The counters of a topic's releases (`destination` None), or the counters and state of a destination's circuit."""

    topic: str
    destination: str | None
    state: str
    numbers: dict[str, int]


def admit_items(plans: Plans, topic: str, limits: Limits, wanted: Sequence[tuple[str, int]]) -> Plan[list[Admitted]]:
    """Ask how many items of each (destination, count) may be released now, and when the other items may be released."""
    return plans.one(shard_of(topic, plans.shards), Admit(topic, limits, wanted))


def report_results(plans: Plans, topic: str, rows: Sequence[tuple[str, int, int, int]]) -> Plan[int]:
    """Report the results of attempts: (destination, first attempts, succeeded, failed). Returns the number of rows."""
    return plans.one(shard_of(topic, plans.shards), ReportResults(topic, rows))


def count_spread(plans: Plans, topic: str, count: int) -> Plan[int]:
    """Add `count` to the number of due times that a topic's policy has spread (moved apart). Returns the total."""
    return plans.one(shard_of(topic, plans.shards), CountSpread(topic, count))


def list_flows(plans: Plans) -> Plan[list[Flow]]:
    """The counters of the topics and circuits that were used in the last hour, at most 500 of each shard."""
    answers: list[list[Flow]] = yield plans.everywhere(LookAtFlows)
    return [flow for found in answers for flow in found]


class RateLimits(Capability):
    """Asks a store which items may be released now, by the rate limits of topics and the circuits of destinations.

    It also gives the store the results of attempts, and reads the counters.
    """

    admit = blocking(admit_items)
    report = blocking(report_results)
    spread = blocking(count_spread)
    flows = blocking(list_flows)


_KEEP_MS, _WINDOW_MS = 3_600_000, 10_000  # as in flow.lua

Numbers = dict[str, int]


@dataclass(slots=True)
class Circuit:
    """The circuit of one destination: state "c" closed, "o" open, "h" half open."""

    state: str = ""
    numbers: Numbers = field(default_factory=dict)


class RateLimitsInMemory:
    """The rate limits and circuits of one shard of a store in memory, and when each was last used."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.topics: dict[str, Numbers] = {}
        self.circuits: dict[tuple[str, str], Circuit] = {}
        self.used: dict[tuple[str, str | None], int] = {}

    def forget_old(self) -> None:
        """Forget the limits of topics, and the circuits, that nobody has used for an hour."""
        for name in [name for name, used_ms in self.used.items() if used_ms <= self._shard.now_ms - _KEEP_MS]:
            del self.used[name]
            topic, destination = name
            if destination is None:
                self.topics.pop(topic, None)
            else:
                self.circuits.pop((topic, destination), None)

    def topic(self, topic: str) -> Numbers:
        """The counters of a topic. Records that the topic is in use."""
        self.forget_old()
        self.used[topic, None] = self._shard.now_ms
        numbers = self.topics.setdefault(topic, {})
        _slide(numbers, self._shard.now_ms, _WINDOW_MS, ("f",))
        return numbers

    def circuit(self, topic: str, destination: str) -> Circuit:
        """The circuit of a destination. Records that the circuit is in use."""
        self.used[topic, destination] = self._shard.now_ms
        circuit = self.circuits.setdefault((topic, destination), Circuit())
        _slide(circuit.numbers, self._shard.now_ms, circuit.numbers.get("within", 60_000), ("ok", "bad"))
        return circuit


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


def _turn(circuit: Circuit, limits: Limits, now_ms: int) -> None:
    """Change the state of the circuit to open, half open or closed, if its results or the time require it."""
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


_WHY: dict[bytes, WhyNot] = {b"r": "rate", b"b": "budget", b"o": "open", b"h": "half-open", b"-": "-"}


@dataclass(slots=True)
class Admit(Operation[list[Admitted]]):
    """Ask how many items of each (destination, wanted) may be released now. A repeat takes further releases."""

    script = "flow"
    writes = False
    topic: str
    limits: Limits
    wanted: Sequence[tuple[str, int]]
    token: str = ""

    def argv(self) -> list[Argument]:
        one = self.limits
        args: list[Argument] = ["admit", encode_text(self.topic), one.interval_us, one.burst, one.share_ppm]
        args += [one.least_mhz, one.trip_ppm, one.of, one.within_ms, one.open_ms]
        return [*args, *(part for dest, count in self.wanted for part in (encode_text(dest), count))]

    def parse(self, reply: Any, shard: int) -> list[Admitted]:
        return [
            Admitted(int(reply[at]), int(reply[at + 1]), int(reply[at + 2]), _WHY[bytes(reply[at + 3])])
            for at in range(0, len(reply), 4)
        ]

    def in_memory(self, shard: MemoryShard) -> list[Admitted]:
        numbers, limits = shard.room(RateLimitsInMemory).topic(self.topic), self.limits
        interval_us, burst = limits.interval_us, limits.burst
        why: WhyNot = "rate"
        if limits.share_ppm:
            first_per_s = _faded(numbers, shard.now_ms, _WINDOW_MS, "f") / (_WINDOW_MS / 1000)
            spacing_us = math.ceil(1_000_000 / (limits.least_mhz / 1000 + limits.share_ppm / 1_000_000 * first_per_s))
            if spacing_us > interval_us:
                interval_us, why = spacing_us, "budget"
        if not burst and interval_us:
            burst = max(1, 1_000_000 // interval_us)
        answers = [self._one(shard, numbers, *row, interval_us, burst, why) for row in self.wanted]
        numbers["interval"] = interval_us
        return answers

    def _one(
        self,
        shard: MemoryShard,
        numbers: Numbers,
        destination: str,
        wanted: int,
        interval_us: int,
        burst: int,
        why: WhyNot,
    ) -> Admitted:
        """Decide how many items may be released to one destination now."""
        granted, first_ms, mark = self._pass_circuit(shard, destination, wanted)
        if granted < wanted:
            _add(numbers, "granted", granted)
            return Admitted(granted, first_ms * 1000, self.limits.open_ms * 1000 // (wanted - granted), mark)
        first_us, refused = 0, 0
        if interval_us:
            tat_us = max(numbers.get("tat", 0), shard.now_us)
            granted = min(wanted, max(0, (shard.now_us + burst * interval_us - tat_us) // interval_us))
            numbers["tat"] = tat_us + granted * interval_us
            refused = wanted - granted
            if refused:
                slot_us = max(numbers.get("slot", 0), numbers["tat"] - burst * interval_us)
                first_us = slot_us + interval_us
                numbers["slot"] = slot_us + refused * interval_us
                _add(numbers, why, refused)
        _add(numbers, "granted", granted)
        return Admitted(granted, first_us, interval_us, why if refused else "-")

    def _pass_circuit(self, shard: MemoryShard, destination: str, wanted: int) -> tuple[int, int, WhyNot]:
        """How many items pass the circuit, the due time (ms) of the items that do not pass, and why these must wait."""
        limits = self.limits
        if not limits.trip_ppm:
            return wanted, 0, "-"
        circuit = shard.room(RateLimitsInMemory).circuit(self.topic, destination)
        results = circuit.numbers
        # when the width of the window changes, counting uses the new width
        results["within"], results["w"] = limits.within_ms, shard.now_ms // limits.within_ms
        _turn(circuit, limits, shard.now_ms)
        granted, first_ms = wanted, 0
        mark: WhyNot = "-"
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


@dataclass(slots=True)
class ReportResults(Operation[int]):
    """Report the results of attempts: (destination, first attempts, succeeded, failed)."""

    script = "flow"
    writes = False
    topic: str
    rows: Sequence[tuple[str, int, int, int]]
    token: str = ""

    def argv(self) -> list[Argument]:
        args: list[Argument] = ["report", encode_text(self.topic)]
        for destination, *counts in self.rows:
            args += [encode_text(destination), *counts]
        return args

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        room = shard.room(RateLimitsInMemory)
        numbers = room.topic(self.topic)
        for destination, first, succeeded, failed in self.rows:
            _add(numbers, "f0", first)
            circuit = room.circuit(self.topic, destination)
            _add(circuit.numbers, "ok0", succeeded)
            _add(circuit.numbers, "bad0", failed)
            if circuit.state == "h":
                _add(circuit.numbers, "pok", succeeded)
                _add(circuit.numbers, "pbad", failed)
        return len(self.rows)


@dataclass(slots=True)
class CountSpread(Operation[int]):
    """Count due times that the policy of a topic has spread (moved apart). The count is for reports only."""

    script = "flow"
    writes = False
    topic: str
    count: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["spread", encode_text(self.topic), self.count]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        numbers = shard.room(RateLimitsInMemory).topic(self.topic)
        _add(numbers, "spread", self.count)
        return numbers["spread"]


@dataclass(slots=True)
class LookAtFlows(Operation[list[Flow]]):
    """Read the counters of the topics and circuits used in the last hour, at most 500, most recently used first."""

    script = "flow"
    writes = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look"]

    def parse(self, reply: Any, shard: int) -> list[Flow]:
        return [_flow(decode_text(reply[at]), reply[at + 1]) for at in range(1, len(reply), 2)]

    def in_memory(self, shard: MemoryShard) -> list[Flow]:
        room, found = shard.room(RateLimitsInMemory), []
        room.forget_old()
        for topic, destination in sorted(room.used, key=lambda name: -room.used[name])[:MAX_BATCH]:
            if destination is None:
                found.append(Flow(topic, None, "", dict(room.topics[topic])))
            else:
                circuit = room.circuits[topic, destination]
                found.append(Flow(topic, destination, circuit.state, dict(circuit.numbers)))
        return found


def _flow(name: str, pairs: Sequence[bytes]) -> Flow:
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    numbers = {decode_text(field): int(float(value)) for field, value in fields.items() if field != b"state"}
    topic, _, destination = name[1:].partition("\n")
    state = decode_text(fields.get(b"state", b""))
    return Flow(topic, destination if name[0] == "c" else None, state, numbers)
