"""The rooms of the store: the core, and one room for each capability beside it. `ROOMS` is the only list of them.

A room is a folder of this package that holds everything one capability needs: its Lua scripts (`*.lua`), the Lua code
that these scripts share (`prelude*.lua`), and in Python the class that users call, the operations that call the scripts
and the twins of the scripts for the store in memory. A small room has all its Python code in `__init__.py`. A larger
room has more modules, such as `ordering` and `push` with one more each, or `core` and `maintenance` with many.

The core imports no other room. A room adds its functions to the hooks of the core: in Lua in its `prelude.lua`, in
memory in the class of its state.
"""

from __future__ import annotations

from typing import NamedTuple

from wheel_sched.store.attempt_counts import AttemptCountsInMemory
from wheel_sched.store.core.shard import RoomState
from wheel_sched.store.death_groups.counting import DeathGroupsInMemory
from wheel_sched.store.documents.operations import DocumentsInMemory
from wheel_sched.store.fair_shares.in_memory import FairSharesInMemory
from wheel_sched.store.history import HistoryInMemory
from wheel_sched.store.known_ids import KnownIdsInMemory
from wheel_sched.store.log_intake import LogIntakeInMemory
from wheel_sched.store.members import MembersInMemory
from wheel_sched.store.once_per_key.waiting import OncePerKeyInMemory
from wheel_sched.store.ordering.operations import OrderingInMemory
from wheel_sched.store.rate_limits import RateLimitsInMemory
from wheel_sched.store.shard_ownership import OwnershipInMemory
from wheel_sched.store.writer_fence import WriterFencesInMemory


class Room(NamedTuple):
    """A room of the store: the folder that holds everything one capability needs.

    Preludes (shared Lua code) are loaded in the order of `ROOMS`, so a room can use the definitions of earlier rooms.

    Args:
        folder: the name of the folder.
        in_memory: the class of the room's state in each shard of a store in memory. Defaults to None: no such class.
    """

    folder: str
    in_memory: type[RoomState] | None = None


ROOMS = (
    Room("core"),
    Room("known_ids", KnownIdsInMemory),
    Room("once_per_key", OncePerKeyInMemory),
    Room("attempt_counts", AttemptCountsInMemory),
    Room("log_intake", LogIntakeInMemory),
    Room("writer_fence", WriterFencesInMemory),
    Room("ordering", OrderingInMemory),
    Room("rate_limits", RateLimitsInMemory),
    Room("shard_ownership", OwnershipInMemory),
    Room("history", HistoryInMemory),
    Room("members", MembersInMemory),
    Room("documents", DocumentsInMemory),
    Room("death_groups", DeathGroupsInMemory),
    Room("recurring"),
    Room("fair_shares", FairSharesInMemory),
    Room("push"),
    Room("maintenance"),
)
