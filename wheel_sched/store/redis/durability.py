"""Durability: what an acknowledged write has waited for, and which servers can keep a level. No I/O.

The backend sends `confirmation` after the writes, on the same connection. `doubt` reads the replies:

- `fsync`: CONFIG GET. With `appendfsync always` a server syncs before it replies, so the reply is the confirmation.
  CONFIG GET in the same round trip notices a failover to a server with other settings. But while a server makes its
  first append-only file (after `CONFIG SET appendonly yes`, or as a replica after a full resynchronisation), a crash
  loses its writes. WAITAOF can tell this case from an ordinary rewrite. Without WAITAOF (Redis 7.0, or a user without
  the permission) INFO is used, and any rewrite counts as a doubt. WAITAOF alone is not enough: with a sync every
  second, Valkey 9.1 answers WAITAOF before the sync.
- `replicated`: WAIT.

WAIT and WAITAOF confirm the last write of their own connection. A repeat that the server answers from memory writes
nothing, so `confirmation` starts with a write.

The delay store and the topics on Redis Streams both use this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wheel_sched.errors import InDoubt, StoreError, StoreUnavailable
from wheel_sched.store.core.levels import LEVELS, REPEAT, check_level

CONFIRM_MS = 5_000  # how long WAIT and WAITAOF may take before a write is in doubt; less when the client waits less
SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
OURS = "wheel-sched:"  # part of the names of our keys beside topics; no topic has it in its name
CONFIRMED = f"{OURS}confirmed".encode()
_TOUCH = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '', 'PX', 60000)"  # allow-oom: works on a full server
_SET = "redis-cli CONFIG SET {0}, and the same in its configuration file"
_INFO = (b"INFO", b"persistence")  # in bytes: redis-py has a slow parser for it as text
_REWRITING = re.compile(r"^aof_rewrite_(?:in_progress|scheduled):1", re.M)
_NO_WAITAOF = re.compile(r"unknown command|NOPERM|no permissions", re.I)

Command = tuple[bytes | str | int, ...]


@dataclass(frozen=True, slots=True)
class Durability:
    """A durability level.

    `replicas`: how many replicas must confirm a write under `replicated`. `reply_s`: for how many seconds the client
    waits for a reply (None: for ever).
    """

    level: str = "everysec"
    replicas: int = 1
    reply_s: float | None = None

    def __post_init__(self) -> None:
        check_level(self.level, self.replicas)

    def within(self, reply_s: float | None) -> Durability:
        """The same level for a client that waits `reply_s` seconds for a reply; None: for ever.

        WAIT and WAITAOF must answer before this time. Otherwise the client gives up a write that was executed but not
        confirmed, and the caller cannot tell it from a write that was perhaps not executed.
        """
        return replace(self, reply_s=reply_s)

    @property
    def confirm_ms(self) -> int:
        """How long WAIT or WAITAOF may take, in ms."""
        return CONFIRM_MS if self.reply_s is None else max(1, min(CONFIRM_MS, int(self.reply_s * 800)))

    @property
    def confirms(self) -> bool:
        """Whether a write waits for more than its own reply."""
        return self.level in ("fsync", "replicated")

    def keeps(self, asked: Durability) -> bool:
        """Whether this level includes the level `asked`. Neither of `fsync` and `replicated` includes the other."""
        if asked.confirms:
            enough = self.replicas >= asked.replicas or asked.level != "replicated"
            return self.level == asked.level and enough
        return LEVELS.index(self.level) >= LEVELS.index(asked.level)

    def __str__(self) -> str:
        replicas = f", replicas={self.replicas}" if self.level == "replicated" else ""
        return f"durability={self.level!r}{replicas}"

    def confirmation(self, key: bytes | str) -> tuple[Command, ...]:
        """The commands to send after writes; () for a level that needs no confirmation.

        Args:
            key: a key of this package in the hash slot of the writes. The commands overwrite it, and it expires.
        """
        if self.level == "fsync":
            return ("EVAL", _TOUCH, 1, key), ("WAITAOF", 1, 0, self.confirm_ms), ("CONFIG", "GET", *SYNCED), _INFO
        if self.level == "replicated":
            return ("EVAL", _TOUCH, 1, key), ("WAIT", self.replicas, self.confirm_ms)
        return ()

    def doubt(self, replies: Sequence[Any], then: str = REPEAT) -> InDoubt | None:
        """Make an error if the replies to `confirmation` do not confirm the writes; None if they do.

        Args:
            replies: the replies of the server, or errors instead.
            then: the next step for the user, in words. By default: repeat under the same token or id.
        """
        problem = self._problem(replies)
        return None if problem is None else InDoubt(f"written, but {problem}{then}")

    def _problem(self, replies: Sequence[Any]) -> str | None:
        if self.level == "replicated":
            few = f"only {replies[-1]} of {self.replicas} replicas confirmed within {self.confirm_ms / 1000:g} s: "
            return self._unconfirmed(replies) or (few if int(replies[-1]) < self.replicas else None)
        touched, synced, settings, persistence = replies
        wrong = "" if isinstance(settings, Exception) else _unsynced(_pairs(settings))
        if wrong:
            return f"this server answers before it has synced ({wrong}): {_mend(wrong)}; then "
        without = isinstance(synced, Exception) and _NO_WAITAOF.search(str(synced)) is not None
        failed = self._unconfirmed([touched, settings, persistence, *(() if without else (synced,))])
        if failed:
            return failed
        if isinstance(synced, Exception):
            making = _REWRITING.search(_text(persistence)) is not None
        else:
            making = int(synced[0]) < 1
        if not making:
            return None
        return (
            "this server is still making its first append-only file, and a crash before it is there loses the write: "
            "wait until `redis-cli INFO persistence` says aof_rewrite_in_progress:0; then "
        )

    def _unconfirmed(self, replies: Sequence[Any]) -> str | None:
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        return None if error is None else f"durability {self.level!r} could not be confirmed ({error}): "

    def refusal(self, info: Mapping[str, Any], settings: Any) -> StoreError | None:
        """The error for a server that cannot keep the level; None if it can.

        Args:
            info: the INFO of the server.
            settings: its reply to CONFIG GET of `SYNCED`, or the error instead.
        """
        if self.level == "fsync":
            if isinstance(settings, Exception):
                return StoreError(
                    f"durability 'fsync' needs to read the server's settings, which the server refused ({settings}): "
                    "allow it with `ACL SETUSER <user> +config|get`, or ask for 'replicated' or "
                    "'everysec'; nothing was changed"
                )
            wrong = _unsynced(_pairs(settings))
            if wrong:
                return StoreError(
                    f"durability 'fsync' needs a server that syncs before it replies; this one has {wrong}: "
                    f"{_mend(wrong)}, or ask for another level; nothing was changed"
                )
            rewriting = any(int(info.get(f"aof_rewrite_{state}", 0) or 0) for state in ("in_progress", "scheduled"))
            if rewriting and not int(info.get("aof_base_size", 0) or 0):
                return StoreUnavailable(
                    "durability 'fsync': the server is still making its first append-only file: try again when INFO "
                    "says aof_rewrite_in_progress:0; nothing was changed"
                )
        connected = int(info.get("connected_slaves", 0) or 0)
        if self.level == "replicated" and connected < self.replicas:
            return StoreError(
                f"durability 'replicated' needs connected replicas: {self.replicas}, this server has {connected}: "
                "connect them, or ask for fewer or for another level; nothing was changed"
            )
        return None


def unsynced(settings: Any) -> str:
    """The settings with which a server replies before it has synced, as text; "" when there are none."""
    return _unsynced(_pairs(settings))


def _unsynced(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {settings.get(name, 'unknown')}" for name, wanted in SYNCED.items() if settings.get(name) != wanted
    )


def _mend(wrong: str) -> str:
    names = [part.split()[0] for part in wrong.split(", ")]
    return _SET.format(" ".join(f"{name} {SYNCED[name]}" for name in names))


def _pairs(reply: Any) -> dict[str, str]:
    """Read the reply to CONFIG GET, which is a mapping or a flat list, of texts or of bytes."""
    flat = [part for pair in reply.items() for part in pair] if isinstance(reply, Mapping) else list(reply or ())
    texts = [_text(part) for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _text(part: Any) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)


def confirmation_key(tag: bytes | str) -> bytes:
    """The key that `confirmation` writes, in the slot of this hash tag. No topic has such a name."""
    return b"{%b}:%b" % (tag if isinstance(tag, bytes) else tag.encode(), CONFIRMED)
