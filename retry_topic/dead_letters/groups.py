"""Dead letters grouped by topic and error: what fails, how often, since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from retry_topic.dead_letters.selection import DeadLetterInfo

_CODE = 64  # characters, as in the store's `death_groups`


@dataclass(slots=True)
class Group:
    """Dead letters of one topic with one error fingerprint.

    Args:
        topic: the topic on which they first failed.
        fingerprint: the fingerprint of the error; without one, the part of the reason before its first colon.
        count: the number of letters.
        first_ms: when the first letter died.
        last_ms: when the last letter died.
        sample: the first letter.
    """

    topic: str
    fingerprint: str
    count: int
    first_ms: int
    last_ms: int
    sample: DeadLetterInfo


def reason_code(reason: str) -> str:
    """The group of a letter without a fingerprint: its reason before the first colon, 64 characters at most."""
    return reason.partition(":")[0][:_CODE]


def group_letters(letters: Iterable[DeadLetterInfo]) -> list[Group]:
    """Group letters, given in order of death. The largest group comes first."""
    groups: dict[tuple[str, str], Group] = {}
    for letter in letters:
        key = letter.topic, letter.state.error_fingerprint or reason_code(letter.reason)
        group = groups.get(key)
        if group is None:
            groups[key] = Group(*key, 1, letter.died_ms, letter.died_ms, letter)
        else:
            group.count += 1
            group.last_ms = letter.died_ms
    return sorted(groups.values(), key=lambda group: -group.count)
