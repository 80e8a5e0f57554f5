"""Operations on flow control: what may be released now, and what became of it; the verbs of flow.lua."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from wheel_sched.store.operations.call import Argument
from wheel_sched.store.record import decode_text, encode_text

WhyNot = Literal["rate", "budget", "open", "half-open", "-"]
_WHY: dict[bytes, WhyNot] = {b"r": "rate", b"b": "budget", b"o": "open", b"h": "half-open", b"-": "-"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds back a topic's releases; 0 lifts each part.

    Args:
        interval_us: one release every so many microseconds.
        burst: so many at once after a pause; 0 = a second's worth.
        share_ppm: releases per million first attempts.
        least_mhz: releases per 1,000 seconds that are allowed without any first attempt.
        trip_ppm: failures per million attempts of a destination that open its circuit.
        of: results there must be before it opens.
        within_ms: over which they are counted.
        open_ms: how long it stays open, and a probe is waited for.
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
    """Of what a destination wanted, `granted` may go now; the rest from `first_us` on, `step_us` apart."""

    granted: int
    first_us: int
    step_us: int
    why: WhyNot


class Flow(NamedTuple):
    """The flow of a topic (`destination` None) or the circuit of a destination, as numbers and a state."""

    topic: str
    destination: str | None
    state: str
    numbers: dict[str, int]


@dataclass(slots=True)
class Admit:
    """Ask what of (destination, wanted) may be released now. A repeat asks again: it has no memory of its answer."""

    script: ClassVar[str] = "flow"
    writes: ClassVar[bool] = False
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


@dataclass(slots=True)
class Report:
    """Tell what became of attempts: (destination, first attempts, succeeded, failed)."""

    script: ClassVar[str] = "flow"
    writes: ClassVar[bool] = False
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


@dataclass(slots=True)
class CountSpread:
    """Tell how many dues of a topic were spread by its policy; nothing is held back by it, and only `look` tells it."""

    script: ClassVar[str] = "flow"
    writes: ClassVar[bool] = False
    topic: str
    count: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["spread", encode_text(self.topic), self.count]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)


@dataclass(slots=True)
class LookAtFlows:
    """The flows and circuits used in the last hour, the last used first, at most 500."""

    script: ClassVar[str] = "flow"
    writes: ClassVar[bool] = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look"]

    def parse(self, reply: Any, shard: int) -> list[Flow]:
        return [_flow(decode_text(reply[at]), reply[at + 1]) for at in range(1, len(reply), 2)]


def _flow(name: str, pairs: Sequence[bytes]) -> Flow:
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    numbers = {decode_text(field): int(float(value)) for field, value in fields.items() if field != b"state"}
    topic, _, destination = name[1:].partition("\n")
    state = decode_text(fields.get(b"state", b""))
    return Flow(topic, destination if name[0] == "c" else None, state, numbers)
