"""Items that a release before the digest in ids has stored: they get an id of this release before they are sent.

A worker of that release that receives the task too early stores it again under the very id, is told that it is there,
and acknowledges; while the item is in flight this is the end of the task, since whoever sent it settles it as done. So
such an item is never in flight while its message is out: the task is stored under its new id, then the old item ends,
then the new one is sent. Whoever dies in between leaves both; the old one then goes the same way once more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Final

from wheel_sched.dispatcher import Failed
from wheel_sched.errors import Rejected, StoreError
from wheel_sched.store.delay_store import DelayStore
from wheel_sched.store.items import MAX_DUE_MS, Claimed, Item, Outcome
from wheel_sched_celery.message.held_task import HeldTask, decode

_OLDER: Final = re.compile(r":\d+:-?\d{1,15}(?:@[0-9a-f]{12})?\Z")  # retries and ETA at its end, or a queue's digest


def is_older(item_id: str) -> bool:
    """Whether a release before the digest in ids has made it."""
    return _OLDER.search(item_id) is not None


def current_id(item_id: str, body: bytes) -> str:
    """The id that an item has in this release; its own where its task cannot be read."""
    if is_older(item_id):
        with contextlib.suppress(Rejected):
            return decode(body).item_id
    return item_id


def store_anew(
    store: DelayStore, claimed: Sequence[tuple[Claimed, HeldTask]], least_due_ms: int = 0
) -> list[Failed | None]:
    """Store claimed tasks under their new ids; for each None = it waits there, so that the old item may end.

    They are due at their ETA, or at `least_due_ms` when that is later: no older worker takes back what is due.

    Raises:
        StoreError: it is away; the old items stay, and the same call may be repeated.
    """
    items = [
        Item(task.item_id, min(max(task.eta_ms, least_due_ms), MAX_DUE_MS), old.body, old.topic, old.refs, old.route)
        for old, task in claimed
    ]
    stored = store.schedule(items, token="") if items else None
    outcomes = stored.outcomes if stored is not None else []
    return [
        None if outcome is not Outcome.DUPLICATE else _lies_still(store, item)
        for item, outcome in zip(items, outcomes, strict=True)
    ]


def _lies_still(store: DelayStore, item: Item) -> Failed | None:
    """What is in flight is no reason to end the old item: its message may be on its way to an older worker."""
    (found,) = store.get([item.id], route=item.route)
    if found is not None and found.state != "fly":
        return None
    return Failed("the same task is being sent from another item; it is looked at again")


def try_store_anew(store: DelayStore, claimed: Sequence[tuple[Claimed, HeldTask]]) -> list[Failed | None]:
    """`store_anew` for a dispatcher, which tries again whatever failed."""
    try:
        return store_anew(store, claimed)
    except (Rejected, StoreError) as error:
        return [Failed(f"it could not be stored under its new id: {error}") for _ in claimed]
