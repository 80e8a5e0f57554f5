"""Finds some letters of a group without reading the whole store."""

from __future__ import annotations

from retry_topic.connection import Connection
from retry_topic.management.filters import ListedMessage, entry_of
from retry_topic.management.inbox.groups import group_of
from wheel_sched.errors import Rejected
from wheel_sched.store import Found

MOST_MEMBERS = 20
_FOUND = 400  # ids that are found by the fingerprint; groups of several topics may have the same fingerprint
_READ = 25  # letters that one call reads


def group_members(connection: Connection, topic: str, group: str, last_id: str = "") -> list[ListedMessage]:
    """At most 20 dead letters of a group. The one that died last is first.

    At most 400 items with the fingerprint are read. A group whose name is the code of a reason has no fingerprint. Then
    the first letters of the topic are read, in order of death.

    Args:
        connection: where the letters are stored.
        topic: the topic of the group.
        group: the name of the group: a fingerprint, or the code of a reason.
        last_id: the id of the letter that died last. Defaults to "": unknown.
    """
    store = connection.store

    def belongs(found: Found | None) -> bool:
        return found is not None and found.state == "dead" and found.topic == topic and group_of(found) == group

    try:
        ids = store.find(f"fp:{group}", limit=_FOUND)
    except Rejected:  # the code of a reason may be no valid ref
        ids = []
    if last_id:
        ids = [last_id, *(one for one in ids if one != last_id)]
    members: list[Found] = []
    for at in range(0, len(ids), _READ):
        members += [one for one in store.get(ids[at : at + _READ], anywhere=True) if one is not None and belongs(one)]
        if len(members) >= MOST_MEMBERS:
            break
    if len(ids) <= 1:  # no letter has the fingerprint as a ref; a listing reads at most 40 pages
        listed = store.list_items("dead", topic=topic, limit=_READ, matches=belongs).found
        members = list({one.id: one for one in (*members, *listed)}.values())
    newest = sorted(members, key=lambda one: (-one.score_ms, one.id))
    return [entry_of(one) for one in newest[:MOST_MEMBERS]]
