"""Hostile messages of the retry worlds, and how scenarios get them.

| kind | what it is |
|---|---|
| duplicated | a record that is in its topic twice |
| forged | a record that a stranger puts into a topic of the group, with forged or damaged retry headers |
| huge | a payload above the size limit |
| just-fits | a payload below the size limit; the headers of the product make the record too large |
| poison | a message whose handler kills its process |

A handler may get a forged record, although no producer of the system sent it. docs/guarantees.md promises that such a
record raises no limit, stops no consumer and harms no other message. The record itself ends like every other message.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.message import Headers, Message
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from wheel_sched.simulation.scenario import Fault, HandIn, Step

KINDS = ("duplicated", "forged", "forged", "forged", "huge", "just-fits", "poison")
BROKER_FAULTS = {
    "retry": ("late-produce", "untold-commit", "late-commit"),
    "retry-fair": ("late-produce", "untold-commit", "late-commit"),
    "retry-log": ("expel", "fence", "late-commit", "untold-commit", "late-produce", "slow-fetch", "recreate"),
}
_LONG = b"9" * 30


def _attempt(text: bytes) -> Headers:
    return (("retry-attempt", text),)


def _forgeries(victim: str) -> dict[str, Headers]:
    """Forged headers, by what is wrong with them. Some of them carry `victim`, the id of another message."""
    stolen = (("retry-id", victim.encode()), ("retry-attempt", b"1"), ("retry-started-at", b"1"))
    return {
        "attempt too high": _attempt(_LONG),
        "attempt at the cap": _attempt(b"4"),
        "attempt negative": _attempt(b"-7"),
        "attempt no number": _attempt(b"many"),
        "attempt empty": _attempt(b""),
        "attempt twice": (*_attempt(b"3"), *_attempt(b"x")),
        "replays too high": (("retry-replays", _LONG), ("retry-attempt", b"1")),
        "bad id": (("retry-id", b"\xff" * 30), ("retry-attempt", b"1")),
        "long id": (("retry-id", b"i" * 300), ("retry-attempt", b"1")),
        "empty id": (("retry-id", b""),),
        "stolen id": stolen,
        "stolen id, dead": (*stolen, ("retry-verdict", b"dead")),
        "long wait": (("retry-verdict", b"retry"), ("retry-after", b"3600000")),
        "wrong delay": (("retry-delay", _LONG), ("retry-due-at", _LONG), ("retry-first-failed-at", b"0")),
        "unknown policy": (("retry-policy", b"nobody@99"), ("retry-max", b"1000000"), ("retry-attempt", b"2")),
        "unknown topic": (("retry-original-topic", b"no-such-topic"), ("retry-original-offset", b"\x00")),
        "unknown verdict": (("retry-verdict", b"drop table"), ("retry-signature", b"x" * 64)),
        "another group": (("retry-consumer-group", b"others"), ("retry-published-at", b"1"), ("retry-id", b"x")),
        "expired": (("expires-at", b"1"),),
    }


FORGERIES = (*_forgeries(""),)


def hostile(rng: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a scenario with some of its plain messages replaced by hostile ones."""
    plain = [step for step in steps if isinstance(step, HandIn) and step.kind == "plain"]
    rng.shuffle(plain)
    kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 2, 4, 6)))]
    chosen: dict[int, HandIn] = {}
    for drawn, step in zip(kinds, plain, strict=False):
        kind = drawn
        if kind == "poison" and any(one.kind == "poison" for one in chosen.values()):
            continue  # one poison message is enough: it kills several processes
        if kind == "forged":
            kind = f"forged {rng.choice(('retry', 'redelivery'))}: {rng.choice(FORGERIES)}"
        delay = 0 if kind == "duplicated" or kind.startswith("forged") else step.delay
        # A slow poison message could kill a process that has lost the partition. No delivery count would show that.
        lasts = 0 if kind == "poison" else step.lasts
        chosen[step.number] = replace(step, kind=kind, delay=delay, lasts=lasts)
    return [chosen.get(step.number, step) if isinstance(step, HandIn) else step for step in steps]


def broker_faults(rng: random.Random, world: str, span_ms: int) -> list[Step]:
    """Draw one to three faults of the kinds that only the broker of this world has."""
    kinds = BROKER_FAULTS[world]
    return [
        Fault(rng.choice(kinds), "broker", rng.randrange(span_ms), rng.choice((100, 500, 1_000, 3_000)))
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]


def is_forged(send: HandIn) -> bool:
    """Whether a stranger sends this message, with forged headers."""
    return send.kind.startswith("forged")


def value_of(send: HandIn, largest_bytes: int) -> bytes:
    """The payload of a message: its number. Blanks follow if the message is `huge` or `just-fits`, see the module.

    `largest_bytes`: the size limit of payloads in the simulated system.
    """
    number = b"%d" % send.number
    if send.kind == "huge":
        return number.ljust(largest_bytes + 1)
    if send.kind == "just-fits":
        return number.ljust(largest_bytes - 100)
    return number


def number_in(value: bytes) -> int:
    """The number of a message, from its payload."""
    return int(value[:10])


def record_of(send: HandIn, group: str, topic: str) -> Message:
    """The record that the producer publishes for a forged or a duplicated message."""
    value = b"%d" % send.number
    if not is_forged(send):
        return Message(topic, value, headers=(("retry-id", b"m%d" % send.number),))
    where, _, what = send.kind.removeprefix("forged ").partition(": ")
    names = {"retry": retry_topic_of(group), "redelivery": redelivery_topic_of(group)}
    return Message(names[where], value, headers=_forgeries(f"m{send.number - 1}")[what])
