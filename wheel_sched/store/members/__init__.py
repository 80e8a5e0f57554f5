"""Members: the live processes of a namespace. Each announces itself under a lease, and leaves when it stops.

A member is one consumer, retry service, Celery worker or scheduler. `wheel-sched ps` lists them. No promise of the
store depends on them: a member that is not announced works as well.

All members of a namespace lie in one shard. When the lease of a member has ended, `live` no longer returns it.
The next announcement of any member, or the next sweep, removes it from memory. If nobody announces and nobody sweeps,
the server itself removes all members, a second after the last lease has ended.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import uuid4

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Operation, Plan
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, check_id, decode_text, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.shard import MemoryShard

SHARD = 0
"""The shard that holds the members."""
MAX_LEASE_MS = 86_400_000

_TEXT = 250  # characters of a text in an announcement, and how many topics and counts it has
_LISTED = 100
_PAGES = 100  # of one listing


@dataclass(frozen=True, slots=True)
class Member:
    """What a process says about itself. Texts are cut to 250 characters, the other collections to 100 entries.

    Args:
        kind: the kind of the process, such as "consumer", "retry-service", "celery-worker" or "scheduler".
        name: its name, such as a consumer group or a node name. Several members may have the same name.
        topics: the topics, queues or jobstores that it reads. Defaults to ().
        takes_in: the retry topics whose records it takes into the store. Defaults to (): none.
        retries_to: the retry topic to which it writes failed messages. Defaults to "": none.
        releases: whether it releases due items of the namespace. Defaults to False.
        holds: what it holds now, as counts by name, such as {"in_flight": 3}. Defaults to {}.
        lateness: how many of the items that it has released since it started fall into each bucket of lateness. A
            bucket ends at its bound in `LATENESS_BUCKETS_MS`; the last bucket has no bound. Defaults to ().
        host: its machine. Defaults to "".
        pid: the number of its process on that machine. Defaults to 0.
        version: its version of wheel-sched. Defaults to "".
        id: a name that no other member has. Defaults to a random one.
    """

    kind: str
    name: str
    topics: tuple[str, ...] = ()
    takes_in: tuple[str, ...] = ()
    retries_to: str = ""
    releases: bool = False
    holds: Mapping[str, int] = field(default_factory=dict)
    lateness: tuple[int, ...] = ()
    host: str = ""
    pid: int = 0
    version: str = ""
    id: str = field(default_factory=lambda: uuid4().hex)

    def record(self) -> bytes:
        """The member as bytes for the store, without its id."""
        fields = {
            **{name: getattr(self, name)[:_TEXT] for name in ("kind", "name", "retries_to", "host", "version")},
            **{name: [one[:_TEXT] for one in getattr(self, name)[:_LISTED]] for name in ("topics", "takes_in")},
            "releases": self.releases,
            "holds": {name[:_TEXT]: count for name, count in list(self.holds.items())[:_LISTED]},
            "pid": self.pid,
            **({"lateness": self.lateness[:_LISTED]} if self.lateness else {}),
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def of_record(cls, member_id: str, record: bytes) -> Member | None:
        """Read a record. Returns None when it is no record; a field that cannot be read has its default."""
        try:
            found = json.loads(record)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        holds, pid, lateness = found.get("holds"), found.get("pid"), found.get("lateness")
        counts = holds.items() if isinstance(holds, dict) else ()
        return cls(
            _text(found.get("kind")),
            _text(found.get("name")),
            topics=_texts(found.get("topics")),
            takes_in=_texts(found.get("takes_in")),
            retries_to=_text(found.get("retries_to")),
            releases=found.get("releases") is True,
            holds={name: count for name, count in counts if type(count) is int},
            lateness=tuple(one for one in lateness if type(one) is int) if isinstance(lateness, list) else (),
            host=_text(found.get("host")),
            pid=pid if type(pid) is int else 0,
            version=_text(found.get("version")),
            id=member_id,
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


@cache
def _version() -> str:
    try:
        return version("wheel-sched")
    except PackageNotFoundError:
        return ""


def this_process(kind: str, name: str, **about: Any) -> Member:
    """Make a `Member` with the host, pid and version of this process.

    Its id is empty: `MemberAnnouncer` gives it one.

    Args:
        kind: see `Member`.
        name: see `Member`.
        about: further fields of `Member`.
    """
    return Member(kind, name, host=socket.gethostname(), pid=os.getpid(), version=_version(), id="", **about)


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A member whose lease has not ended. All times are epoch ms of the store's clock.

    Args:
        member: what the member said last.
        since_ms: when it started.
        seen_ms: when it announced itself last.
        until_ms: when its lease ends.
    """

    member: Member
    since_ms: int
    seen_ms: int
    until_ms: int


def announce_member(plans: Plans, member: Member, lease_ms: int, *, age_ms: int = 0) -> Plan[int]:
    """Announce a member, or announce it again with what it says now. Returns when its lease ends (epoch ms).

    A repeat is safe. Each announcement replaces the one before.

    Args:
        member: the member.
        lease_ms: how long it counts as live, from 1 ms to a day.
        age_ms: how long ago the member started. Defaults to 0. The store uses it only if it does not know the member.

    Raises:
        Rejected: the id or the lease is malformed; nothing was stored.
    """
    check_id(member.id)
    if type(lease_ms) is not int or not 1 <= lease_ms <= MAX_LEASE_MS:
        raise Rejected(f"expected lease_ms to be from 1 to {MAX_LEASE_MS}, got: {lease_ms!r}; nothing was stored")
    return (yield from plans.one(SHARD, Announce(member.id, lease_ms, max(0, age_ms), member.record())))


def remove_member(plans: Plans, member_id: str) -> Plan[bool]:
    """Remove a member before its lease ends. Returns whether it was there."""
    check_id(member_id)
    return (yield from plans.one(SHARD, Leave(member_id)))


def live_members(plans: Plans) -> Plan[list[LiveMember]]:
    """The members whose lease has not ended. An entry that cannot be read is left out.

    The store returns 500 members a call, and 50,000 at most.
    """
    found: dict[str, LiveMember | None] = {}
    last, last_ms = "", 0
    for _ in range(_PAGES):
        page = yield from plans.one(SHARD, ListMembers(last, last_ms))
        for member_id, until_ms, value in page:
            found[member_id] = _live(member_id, until_ms, value)
            last, last_ms = member_id, until_ms
        if len(page) < MAX_BATCH:
            break
    return [member for member in found.values() if member is not None]


def _live(member_id: str, until_ms: int, value: bytes) -> LiveMember | None:
    since, _, rest = value.partition(b":")
    seen, _, record = rest.partition(b":")
    member = Member.of_record(member_id, record)
    if member is None or not (since.isdigit() and seen.isdigit()):
        return None
    return LiveMember(member, int(since), int(seen), until_ms)


class Members(Capability):
    """The live members of a namespace: announces and removes them, and lists them. See the module's docstring."""

    announce = blocking(announce_member)
    leave = blocking(remove_member)
    live = blocking(live_members)


class AsyncMembers(AsyncCapability):
    """The asyncio twin of `Members`."""

    announce = awaited(announce_member)
    leave = awaited(remove_member)
    live = awaited(live_members)


class MembersInMemory:
    """The members of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.entries: dict[bytes, tuple[int, int, int, bytes]] = {}  # id -> until, since, seen (ms), record
        shard.on_sweep.append(self.forget_old)

    def forget_old(self) -> None:
        """Remove members whose lease has ended."""
        for key in [key for key, entry in self.entries.items() if entry[0] <= self._shard.now_ms]:
            del self.entries[key]


@dataclass(slots=True)
class Announce(Operation[int]):
    """Announce a member. Returns when its lease ends (ms)."""

    script = "announce"
    writes = False
    repeatable = True
    member_id: str
    lease_ms: int
    age_ms: int
    record: bytes
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.member_id), self.lease_ms, self.age_ms, self.record]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        room, now_ms = shard.room(MembersInMemory), shard.now_ms
        room.forget_old()
        key = encode_text(self.member_id)
        since_ms = room.entries[key][1] if key in room.entries else max(0, now_ms - self.age_ms)
        room.entries[key] = now_ms + self.lease_ms, since_ms, now_ms, self.record
        return now_ms + self.lease_ms


@dataclass(slots=True)
class Leave(Operation[bool]):
    """Remove a member. Returns whether it was there."""

    script = "leave"
    writes = False
    repeatable = True
    member_id: str
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.member_id)]

    def parse(self, reply: Any, shard: int) -> bool:
        return bool(reply)

    def in_memory(self, shard: MemoryShard) -> bool:
        return shard.room(MembersInMemory).entries.pop(encode_text(self.member_id), None) is not None


@dataclass(slots=True)
class ListMembers(Operation[list[tuple[str, int, bytes]]]):
    """Read a page of the live members, in order of the end of their lease: rows of (id, end of the lease, value)."""

    script = "list_members"
    reads = True
    writes = False
    last: str = ""
    last_ms: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.last), self.last_ms]

    def parse(self, reply: Any, shard: int) -> list[tuple[str, int, bytes]]:
        return [(decode_text(reply[at]), reply[at + 1], reply[at + 2]) for at in range(0, len(reply), 3)]

    def in_memory(self, shard: MemoryShard) -> list[tuple[str, int, bytes]]:
        entries = shard.room(MembersInMemory).entries
        after = (self.last_ms, encode_text(self.last)) if self.last else (0, b"")
        order = sorted((entry[0], key) for key, entry in entries.items() if entry[0] > shard.now_ms)
        page = [place for place in order if place > after][:MAX_BATCH]
        return [(decode_text(key), until_ms, b"%d:%d:%b" % entries[key][1:]) for until_ms, key in page]
