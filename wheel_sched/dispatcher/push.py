"""Where the one-script hand-over pushes to, when target and store share a server (and in a cluster, a slot)."""

from __future__ import annotations

from dataclasses import dataclass

from wheel_sched.store.operations import PushDue


@dataclass(frozen=True, slots=True)
class PushTarget:
    """How due items are pushed by the server itself.

    Args:
        prefix: put in front of every target name. Defaults to "".
        create: whether streams that do not exist are created; otherwise the item is refused. Defaults to False.
        maxlen: approximate length streams are trimmed to, 0 = never. Defaults to 0.
    """

    prefix: str = ""
    create: bool = False
    maxlen: int = 0

    def claim(self, limit: int, lease_ms: int, epoch: int | None, lapse_cap: int) -> PushDue:
        """The call that claims and pushes up to `limit` items."""
        return PushDue(limit, lease_ms, self.prefix, self.create, self.maxlen, epoch, lapse_cap)
