"""Spreads the due times of a write over time, and checks whether the server has room. All writers use it.

No task sees all rows. So a hash of a row's id gives its delay: the same in every run and in every task. A spread is as
even as the hash is, and a rate holds on average, not for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from wheel_sched.store import DelayStore

BYTES_BESIDE_A_BODY = 200  # server memory, measured by `python -m benchmarks store` with short ids
MOST_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class DueSpread:
    """Moves due times later, never earlier.

    Args:
        spread_ms: the greatest delay; a hash of the id chooses the delay. Defaults to 0: none.
        from_ms: an earlier due time is first moved to this time, before the delay is added. Defaults to 0: no effect.
    """

    spread_ms: int = 0
    from_ms: int = 0

    @classmethod
    def of_rate(cls, rows: int, per_s: float, now_ms: int) -> DueSpread:
        """A spread over the time from now on, so that about `per_s` of the rows become due per second."""
        return cls(max(1, int(rows * 1000 / per_s)), now_ms)

    def due_ms(self, item_id: str, own_ms: int) -> int:
        """The new due time of a row with this id and the due time `own_ms`."""
        if not self.spread_ms:
            return own_ms
        digest = blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return max(own_ms, self.from_ms) + int.from_bytes(digest, "big") % self.spread_ms


def rate_problem(rate: float | None) -> str | None:
    """Why a rate in messages per second is not allowed; None if it is."""
    if rate is None or 0 < rate <= MOST_PER_S:
        return None
    return f"expected rate to be messages a second, above 0 and up to {MOST_PER_S:,.0f}, got: {rate!r}"


def bytes_left(store: DelayStore, limit: int | None) -> int | None:
    """How many bytes the server may still use; None if the server does not say. In a Cluster only one node is asked.

    The most that the server may use is `limit`, else the server's own limit, else the memory of its machine.

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
            f"{what} need about {needed / 1e6:,.1f} MB and the server has {left / 1e6:,.1f} MB left: none of them "
            "was stored; give it more memory, add shards on other servers, or schedule fewer rows"
        )
