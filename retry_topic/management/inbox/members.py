"""Some letters of a group, found without reading the whole store."""

from __future__ import annotations

from retry_topic.connection import Connection
from retry_topic.management.filters import ListedMessage, entry_of
from retry_topic.management.inbox.groups import group_of
from wheel_sched.errors import Rejected
from wheel_sched.store import Found

MOST_MEMBERS = 20
_FOUND = 200  # ids that are looked up by the fingerprint
_PAGE = 50  # a listing reads at most 40 pages, so 2,000 letters


def group_members(connection: Connection, topic: str, group: str, last_id: str = "") -> list[ListedMessage]:
    """At most 20 dead letters of a group, the last one first.

    At most 200 items with the fingerprint are read, and then the 2,000 letters of the topic that died first.

    Args:
        connection: where the letters are stored.
        topic: the topic of the group.
        group: its fingerprint, or the code of the reason.
        last_id: the id of the letter that died last. Defaults to "": unknown.
    """
    store = connection.store

    def belongs(found: Found | None) -> bool:
        return found is not None and found.state == "dead" and found.topic == topic and group_of(found) == group

    try:
        ids = store.find(f"fp:{group}", limit=_FOUND)
    except Rejected:  # the code of a reason may be no ref
        ids = []
    ids = list(dict.fromkeys([*([last_id] if last_id else []), *ids]))
    members = {one.id: one for one in store.get(ids, anywhere=True) if one is not None and belongs(one)}
    if len(members) < MOST_MEMBERS:
        page = store.list_items("dead", topic=topic, limit=_PAGE, matches=belongs)
        members.update((one.id, one) for one in page.found)
    newest = sorted(members.values(), key=lambda one: (-one.score_ms, one.id))
    return [entry_of(one) for one in newest[:MOST_MEMBERS]]
