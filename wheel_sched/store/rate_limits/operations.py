"""Operations on rate limits, one for each verb of flow.lua."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation
from wheel_sched.store.core.record import decode_text, encode_text
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.rate_limits.memory import admit, count_spread, look_at_flows, report
from wheel_sched.store.rate_limits.values import Admitted, Flow, Limits, WhyNot

_WHY: dict[bytes, WhyNot] = {b"r": "rate", b"b": "budget", b"o": "open", b"h": "half-open", b"-": "-"}


@dataclass(slots=True)
class Admit(Operation[list[Admitted]]):
    """Ask how many items of each (destination, wanted) may be released now. A repeat asks again and takes new slots."""

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
        return admit(shard, self.topic, self.limits, self.wanted)


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
        return report(shard, self.topic, self.rows)


@dataclass(slots=True)
class CountSpread(Operation[int]):
    """Count dues of a topic that its policy has spread. The count limits nothing; only reports show it."""

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
        return count_spread(shard, self.topic, self.count)


@dataclass(slots=True)
class LookAtFlows(Operation[list[Flow]]):
    """The flows and circuits used in the last hour, the last used first, at most 500."""

    script = "flow"
    writes = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look"]

    def parse(self, reply: Any, shard: int) -> list[Flow]:
        return [_flow(decode_text(reply[at]), reply[at + 1]) for at in range(1, len(reply), 2)]

    def in_memory(self, shard: MemoryShard) -> list[Flow]:
        return look_at_flows(shard)


def _flow(name: str, pairs: Sequence[bytes]) -> Flow:
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    numbers = {decode_text(field): int(float(value)) for field, value in fields.items() if field != b"state"}
    topic, _, destination = name[1:].partition("\n")
    state = decode_text(fields.get(b"state", b""))
    return Flow(topic, destination if name[0] == "c" else None, state, numbers)
