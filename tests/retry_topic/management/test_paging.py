"""Pages of a search: together they have every match once, in order. Each page reads a bounded part of the store."""

from __future__ import annotations

import pytest

from retry_topic import Connection, Message, connect
from retry_topic.management.paging import matching_page
from retry_topic.management.search import parse_search
from retry_topic.message.encoding import encode_body
from wheel_sched.errors import Rejected
from wheel_sched.store import Item


def filled(connection: Connection, count: int, topic: str = "orders", start: str = "m") -> None:
    """Store messages `m0000`, `m0001`, ..., one due after another."""
    body = encode_body(Message(topic, b"{}"))
    now_ms = connection.store.now_ms() + 3_600_000
    items = [Item(f"{start}{n:04}", now_ms + n, body, topic) for n in range(count)]
    for at in range(0, count, 500):
        connection.store.schedule(items[at : at + 500])


def pages(connection: Connection, text: str, limit: int, most: int = 2_000) -> list[tuple[list[str], int]]:
    found, cursor = [], None
    while True:
        page = matching_page(connection, parse_search(text).filter(0), cursor=cursor, limit=limit, most=most)
        found.append(([entry.id for entry in page.entries], page.looked))
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", [1, 7, 50, 600])
def test_every_match_is_on_one_page_in_order_of_due_time(shards: int, limit: int) -> None:
    """For any limit, the pages together have every match exactly once: first the waiting messages by due time, then the
    held ones."""
    with connect("memory:", shards=shards) as connection:
        filled(connection, 60)
        connection.store.hold(["m0003", "m0009"], "look at it")
        found = pages(connection, "m00", limit)
        ids = [item_id for page, _ in found for item_id in page]
        due = [f"m{n:04}" for n in range(60) if n not in (3, 9)]
        assert ids == [*due, "m0003", "m0009"]
        assert all(len(page) <= limit for page, _ in found)


def test_a_page_reads_a_bounded_part_of_the_store() -> None:
    """A search without a match ends each page at the bound, with a cursor. The next page continues at the cursor."""
    with connect("memory:") as connection:
        filled(connection, 900)
        found = pages(connection, "nowhere", 50, most=400)
        assert len(found) >= 3
        assert all(not page and looked <= 400 for page, looked in found)
        assert sum(looked for _, looked in found) == 900


def test_other_topics_do_not_make_a_page_endless() -> None:
    """A search finds a rare topic behind many messages of another topic, over several bounded pages."""
    with connect("memory:") as connection:
        filled(connection, 3_000, "noise")
        filled(connection, 2, "rare", "r")
        found = pages(connection, "topic:rare", 50)
        assert [item_id for page, _ in found for item_id in page] == ["r0000", "r0001"]


@pytest.mark.parametrize("cursor", ["", "gone {}", "due {", 'due {"9": ["a", 1]}', 'dead {"0": ["a", 1]}'])
def test_a_cursor_of_something_else_is_refused(cursor: str) -> None:
    """A text that is no cursor of this search is refused."""
    with connect("memory:") as connection, pytest.raises(Rejected, match="expected a cursor"):
        matching_page(connection, parse_search("state:due").filter(0), cursor=cursor)
