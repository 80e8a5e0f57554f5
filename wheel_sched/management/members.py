"""The live members of a namespace as data, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.escaping import escaped
from wheel_sched.management.wording import amount, one_line, relative
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.members import LiveMember, Members

KIND, NAME, HOST = 20, 40, 30  # characters of a kind, a name and a host that are shown


def live_members(store: DelayStore, kind: str | None = None) -> tuple[list[LiveMember], int]:
    """The live members by kind, name, host and process, and the store's time in epoch milliseconds.

    Args:
        store: the store of the namespace.
        kind: only members of this kind, such as "consumer". Defaults to None: members of all kinds.
    """
    found = [one for one in Members(store).live() if kind in (None, one.member.kind)]
    found.sort(key=lambda one: (one.member.kind, one.member.name, one.member.host, one.member.pid, one.member.id))
    return found, store.now_ms()


def counted(found: Sequence[LiveMember]) -> str:
    """How many members there are of each kind: `2 consumers, 1 retry-service`."""
    kinds = Counter(shown(one.member.kind, KIND) for one in found)
    return ", ".join(amount(count, kind) for kind, count in sorted(kinds.items())) or "none"


def lateness_of(found: Sequence[LiveMember]) -> list[tuple[int | None, int]]:
    """How many items the members have released, by lateness: upper bound in ms and count. The last bound is None."""
    bounds = (*LATENESS_BUCKETS_MS, None)
    told = [one.member.lateness for one in found if len(one.member.lateness) == len(bounds)]
    return [(bound_ms, sum(max(0, one[at]) for one in told)) for at, bound_ms in enumerate(bounds)]


def place(one: LiveMember, now_ms: int) -> str:
    """A member in words, to find its process: `retry-service billing (pid 77 on web-1, seen 3s ago)`."""
    member = one.member
    who = f"{shown(member.kind, KIND)} {shown(member.name, NAME)}"
    seen = relative(min(one.seen_ms, now_ms), now_ms)
    return f"{who} (pid {member.pid} on {shown(member.host, HOST)}, seen {seen})"


def shown(text: str, limit: int) -> str:
    """A text from another process for display: escaped, and then cut, because escapes are longer than characters."""
    return one_line(escaped(one_line(text)), limit) or "-"


def as_dict(one: LiveMember, now_ms: int) -> dict[str, Any]:
    """A member as data for JSON."""
    member = one.member
    return {
        "id": member.id,
        "kind": member.kind,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "version": member.version,
        "topics": list(member.topics),
        "takes_in": list(member.takes_in),
        "retries_to": member.retries_to or None,
        "releases": member.releases,
        "holds": dict(member.holds),
        "since_ms": one.since_ms,
        "seen_ms": one.seen_ms,
        "until_ms": one.until_ms,
        "now_ms": now_ms,
    }
