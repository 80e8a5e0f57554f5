"""When messages of a batch go out, and whether there is room for them: asked of every writer in the same way.

No task sees all rows. So each row's place in a spread is a hash of its id, the same in every run and wherever it is
computed: a spread is even as far as a hash is, and a rate is kept on average, not to the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from wheel_sched.store import DelayStore

BYTES_BESIDE_A_BODY = 200  # of server memory, measured by `python -m benchmarks store` with short ids
MOST_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Pace:
    """How dues are moved: later, never earlier.

    Args:
        spread_ms: by up to this, by a hash of the id. Defaults to 0: not at all.
        from_ms: what is due before is due then, and spread from there. Defaults to 0: each row from its own due.
    """

    spread_ms: int = 0
    from_ms: int = 0

    @classmethod
    def of_rate(cls, rows: int, per_s: float, now_ms: int) -> Pace:
        """So many rows from now on, about `per_s` a second."""
        return cls(max(1, int(rows * 1000 / per_s)), now_ms)

    def due_ms(self, item_id: str, own_ms: int) -> int:
        """When the row with this id goes out that is due at `own_ms`."""
        if not self.spread_ms:
            return own_ms
        digest = blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return max(own_ms, self.from_ms) + int.from_bytes(digest, "big") % self.spread_ms


def rate_problem(rate: float | None) -> str | None:
    """What is wrong with a rate in messages a second, None when nothing is."""
    if rate is None or 0 < rate <= MOST_PER_S:
        return None
    return f"expected rate to be messages a second, above 0 and up to {MOST_PER_S:,.0f}, got: {rate!r}"


def bytes_left(store: DelayStore, limit: int | None) -> int | None:
    """How many bytes the server may still use: up to `limit`, or its own limit, or what its machine has; None where
    it does not say. Of a Cluster one node is asked.

    Raises:
        StoreError: the server does not answer.
    """
    info = store.backend.info()
    most = limit or int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0))
    return max(0, most - int(info.get("used_memory", 0))) if most else None


def check_room(needed: int, left: int | None, what: str) -> None:
    """Raise `Rejected` when rows need more memory than the server has left."""
    if left is not None and needed > left:
        raise Rejected(
            f"{what} need about {needed / 1e6:,.1f} MB and the server has {left / 1e6:,.1f} MB left: nothing of them "
            "was stored; give it more memory, add shards on other servers, or schedule a part"
        )
