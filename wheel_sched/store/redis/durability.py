"""Durability: what an acknowledged write has waited for, and which servers can keep that. No I/O.

`confirmation` is sent behind the writes, on their own connection, and `doubt` reads its replies:

- `fsync`: CONFIG GET. With `appendfsync always` a server syncs before it replies, so the reply is the confirmation;
  asking in the same round trip notices a failover to a server with other settings. WAITAOF is not used: Valkey 9.1
  answers it before a sync that comes each second.
- `replicated`: a write, then WAIT. WAIT speaks for the last write of its own connection, and a repeat that is answered
  from memory writes nothing.

The delay store and the topics on Redis Streams both send it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wheel_sched.errors import ConfigError, InDoubt, StoreError, StoreUnavailable

LEVELS = ("memory", "everysec", "fsync", "replicated")
CONFIRM_MS = 5_000  # how long WAIT may take before a write is in doubt; less where the client waits less
SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
OURS = "wheel-sched:"  # what keys of ours beside topics have in their names, and topics have not
CONFIRMED = f"{OURS}confirmed".encode()
_TOUCH = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '', 'PX', 60000)"  # also a full server can be drained
_SET = "redis-cli CONFIG SET {0}, and the same in its configuration file"

Command = tuple[bytes | str | int, ...]


@dataclass(frozen=True, slots=True)
class Durability:
    """A level, and for `replicated` how many replicas have to confirm, within what the client waits for a reply."""

    level: str = "everysec"
    replicas: int = 1
    reply_s: float | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ConfigError(f"expected durability to be one of {', '.join(LEVELS)}, got: {self.level!r}")
        if type(self.replicas) is not int or self.replicas < 1:
            raise ConfigError(f"expected replicas to be a whole number from 1 up, got: {self.replicas!r}")

    def within(self, reply_s: float | None) -> Durability:
        """The same over a client that waits so long for a reply; None: for ever.

        WAIT answers before that: else the client gives up over what was written and only not confirmed, and nobody can
        tell it from what may not even have been written.
        """
        return replace(self, reply_s=reply_s)

    @property
    def confirm_ms(self) -> int:
        """How long WAIT may take."""
        return CONFIRM_MS if self.reply_s is None else max(1, min(CONFIRM_MS, int(self.reply_s * 800)))

    @property
    def confirms(self) -> bool:
        """Whether a write waits for more than its own reply."""
        return self.level in ("fsync", "replicated")

    def confirmation(self, key: bytes | str) -> tuple[Command, ...]:
        """What to send behind writes.

        Args:
            key: a name of ours in the slot of what was written; it is overwritten and goes away by itself.
        """
        if self.level == "fsync":
            return (("CONFIG", "GET", *SYNCED),)
        if self.level == "replicated":
            return ("EVAL", _TOUCH, 1, key), ("WAIT", self.replicas, self.confirm_ms)
        return ()

    def doubt(self, replies: Sequence[Any]) -> InDoubt | None:
        """What the replies to `confirmation` leave open."""
        for reply in replies:
            if isinstance(reply, Exception):
                return InDoubt(
                    f"written, but durability {self.level!r} could not be confirmed ({reply}): repeat under the same "
                    "token or id"
                )
        if self.level == "fsync":
            wrong = _unsynced(_pairs(replies[0]))
            if wrong:
                return InDoubt(
                    f"written, but this server answers before it has synced ({wrong}): "
                    f"{_mend(wrong)}; then repeat under the same token or id"
                )
        if self.level == "replicated" and int(replies[-1]) < self.replicas:
            return InDoubt(
                f"written, but only {replies[-1]} of {self.replicas} replicas confirmed within "
                f"{self.confirm_ms / 1000:g} s: repeat under the same token or id"
            )
        return None

    def refusal(self, info: Mapping[str, Any], settings: Any) -> StoreError | None:
        """Why a server cannot keep the level.

        Args:
            info: its INFO.
            settings: its reply to CONFIG GET of `SYNCED`, or the error instead.
        """
        if self.level == "fsync":
            if isinstance(settings, Exception):
                return StoreError(
                    f"durability 'fsync' needs a look at the server's settings, which it refused ({settings}): allow "
                    "it with `ACL SETUSER <user> +config|get`; where nobody may, ask for 'replicated' or 'everysec'; "
                    "nothing was changed"
                )
            wrong = _unsynced(_pairs(settings))
            if wrong:
                return StoreError(
                    f"durability 'fsync' needs a server that syncs before it replies; this one has {wrong}: "
                    f"{_mend(wrong)}, or ask for another level; nothing was changed"
                )
            if int(info.get("aof_rewrite_in_progress", 0) or 0) and not int(info.get("aof_base_size", 0) or 0):
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
    """Which settings of a server let it reply before it has synced, as words; "" when none does."""
    return _unsynced(_pairs(settings))


def _unsynced(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {settings.get(name, 'unknown')}" for name, wanted in SYNCED.items() if settings.get(name) != wanted
    )


def _mend(wrong: str) -> str:
    names = [part.split()[0] for part in wrong.split(", ")]
    return _SET.format(" ".join(f"{name} {SYNCED[name]}" for name in names))


def _pairs(reply: Any) -> dict[str, str]:
    """CONFIG GET's reply, as a mapping or as a flat list, of texts or of bytes."""
    flat = [part for pair in reply.items() for part in pair] if isinstance(reply, Mapping) else list(reply or ())
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=False))


def confirmation_key(tag: bytes | str) -> bytes:
    """The key that `confirmation` writes, in the slot of whatever has this hash tag; no topic has such a name."""
    return b"{%b}:%b" % (tag if isinstance(tag, bytes) else tag.encode(), CONFIRMED)
