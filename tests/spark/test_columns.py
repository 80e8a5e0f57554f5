"""The decoder of packed pages makes the same columns as the decoder that reads row by row.

A packed page is a reply of the store with the rows of a page joined to a few strings.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic.spark.source.columns import items
from retry_topic.spark.source.schemas import ITEMS
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import Item, State, encode_text, make_tail
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.core.scan import Bulk, BulkPage, Scan
from wheel_sched.store.redis.library import KEY_NAMES, shard_keys

pytestmark = pytest.mark.spark

names = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 10**9).map(lambda n: b"%d" % n)
tails = st.builds(make_tail, names, st.none() | names, st.lists(names.filter(bool), max_size=3).map(tuple), st.binary())
sound = st.builds(lambda version, tail: b"1:" + version + b":" + tail, numbers, tails)
broken = (
    st.none()
    | st.binary(max_size=20)
    | st.builds(lambda raw, cut: raw[:cut], sound, st.integers(0, 12))
    | st.sampled_from([b"1:1:3:0:0:ab", b"01:1:0:0:0:", b"1:1:0:0:9:x", b"1:1:0:0:", b"1:-7:0:0:0:", b"1:1_0:0:0:0:"])
)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(str.encode) | st.binary(min_size=1)
reasons = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=9)


def packed(rows: list[tuple[bytes, int, bytes | None]], stored_reasons: list[bytes | None]) -> BulkPage:
    """Pack rows into a page, as the store's script bulk.lua does."""
    found = [raw for _, _, raw in rows]
    return BulkPage(
        False,
        b"".join(raw_id for raw_id, _, _ in rows),
        b" ".join(b"%d" % len(raw_id) for raw_id, _, _ in rows),
        b" ".join(b"4e+12" if score == 4 * 10**12 else b"%d" % score for _, score, _ in rows),
        b"".join(raw or b"" for raw in found),
        b" ".join(b"-1" if raw is None else b"%d" % len(raw) for raw in found),
        stored_reasons,
    )


def by_hand(
    state: State, shard: int, rows: list[tuple[bytes, int, bytes | None]], stored_reasons: list[bytes | None]
) -> Any:
    """Return the expected rows, read by the store's decoder that reads row by row."""
    scan = Scan(state, 0, 1, None, 1)
    reply: Any = [0, *([part[at] for part in rows] for at in range(3)), stored_reasons]
    made = []
    for one, (raw_id, _, raw) in zip(scan.parse(reply, shard), rows, strict=True):
        record = one.record
        reason = one.reason if record is not None or raw is None else one.reason or "unreadable record"
        shown = (None, None, None, None, None)
        if record is not None:
            text = [encode_text(record.topic), *map(encode_text, record.refs)]
            topic, *refs = (part.decode("utf-8", "backslashreplace") for part in text)
            route = record.route and encode_text(record.route).decode("utf-8", "backslashreplace")
            shown = (topic, record.version, route, refs, record.body)  # type: ignore[assignment]
        shown_id = raw_id.decode("utf-8", "backslashreplace")
        topic, version, route, refs, body = shown
        made.append((shown_id, state, shard, one.score_ms, topic, version, reason or None, route, refs, body))
    return made


@given(st.data(), st.sampled_from(["due", "leased", "held", "dead"]), st.booleans())
def test_columns_are_what_the_records_say(data: st.DataObject, state: State, damaged: bool) -> None:
    """The decoder's columns are right for any topics, routes, refs, bytes and damage, in each state, over several
    pages."""

    def stored(raw: bytes | None, reason: bytes) -> bytes | None:
        return raw if raw is None or state != "dead" else b"%d:%s%s" % (len(reason), reason, raw)

    records = st.builds(stored, sound | broken if damaged else sound, reasons.map(str.encode))
    rows = st.lists(st.tuples(ids, st.integers(0, 2**52) | st.just(4 * 10**12), records), min_size=1, max_size=6)
    pages = []
    expected = []
    for page in data.draw(st.lists(rows, min_size=1, max_size=3)):
        stored_reasons: list[bytes | None] = []
        if state in ("leased", "held"):
            stored_reasons = [data.draw(st.none() | reasons.map(lambda text: text.encode() + b"\nt")) for _ in page]
        pages.append(packed(page, stored_reasons))
        expected += by_hand(state, 2, page, stored_reasons)
    found = items(2, state, pages, set(ITEMS))
    columns = [found[name].to_pylist() for name in ITEMS]
    assert [*zip(*columns, strict=True)] == expected
    few = items(2, state, pages, {"id", "body", "reason"})
    assert {name: column.to_pylist() for name, column in few.items()} == {
        name: [row[[*ITEMS].index(name)] for row in expected] for name in ("id", "body", "reason")
    }


ROUTE = next(name for name in "abcdefgh" if shard_of(name, 3) == 0)


def test_a_version_beyond_all_numbers_is_damage() -> None:
    """A record whose version does not fit Spark's bigint is reported as damage, and the query does not fail."""
    raw = b"1:" + b"9" * 30 + b":0:0:0:"
    found = items(0, "due", [packed([(b"a", 1, raw), (b"b", 2, b"1:7:0:0:0:x")], [])], {"version", "reason", "body"})
    assert found["version"].to_pylist() == [None, 7]
    assert found["reason"].to_pylist() == ["unreadable record", None]


def walked(store: DelayStore, scan: Scan) -> list[Any]:
    """Read all pages of a scan from shard 0 of the store."""
    pages: list[Any] = []
    while True:
        (page,) = store.execute([Call(0, scan)])
        assert not isinstance(page, Exception), page
        pages.append(page)
        if isinstance(page, BulkPage):
            if not page.more:
                return pages
            scan.last = page.end()
        else:
            if len(page) < scan.limit:
                return pages
            scan.last = (page[-1].id, page[-1].score_ms)


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_a_server_packs_what_it_would_send_row_by_row(store: DelayStore, redis_client: Any, limit: int) -> None:
    """Packed pages have the same rows as a row-by-row scan, in every state and with any page size.

    The test's items have equal scores over many pages, one has no record, and some ids are not UTF-8.
    """
    rows = [Item(f"i\udcff {n}\n", 5_000 + n % 3, b"x" * n, f"t{n % 4}", route=ROUTE) for n in range(40)]
    store.schedule(rows)
    store.schedule([Item(f"p{n}", None, b"x", "t", ("r", "s"), ROUTE) for n in range(9)])
    store.claim(8, shard=0, lease_ms=600_000)
    store.bury([(Item(f"d{n}", 5, b"y", "t", route=ROUTE), "broken: badly") for n in range(9)])
    body = shard_keys("wheel", 0)[KEY_NAMES.index("body")]
    redis_client.hdel(body, encode_text("i\udcff 20\n"))
    states: tuple[State, ...] = ("due", "leased", "held", "dead")
    for state in states:
        one = [row for page in walked(store, Scan(state, 0, 2**52, None, limit)) for row in page]
        pages = [page for page in walked(store, Bulk(state, 0, 2**52, None, limit)) if page.ids]
        found = items(0, state, pages, set(ITEMS))
        assert found["id"].to_pylist() == [encode_text(row.id).decode("utf-8", "backslashreplace") for row in one]
        assert found["at_ms"].to_pylist() == [row.score_ms for row in one]
        assert found["body"].to_pylist() == [row.record and row.record.body for row in one]
        assert len(one) == {"due": 32, "leased": 8, "held": 9, "dead": 9}[state]
        light = [page for page in walked(store, Bulk(state, 0, 2**52, None, limit, records=False)) if page.ids]
        assert items(0, state, light, {"id"})["id"].to_pylist() == found["id"].to_pylist()


def test_a_page_of_large_records_ends_early(store: DelayStore) -> None:
    """A page of large records ends before its limit of rows, so that its reply is not too large. The next page
    continues, and no row is left out."""
    for at in range(0, 400, 100):
        store.schedule([Item(f"m{n:03}", 5_000, b"x" * 10_000, "t", route=ROUTE) for n in range(at, at + 100)])
    pages = walked(store, Bulk("due", 0, 2**52, None, 500))
    assert len(pages) > 1
    assert max(len(page.records) for page in pages) < 4_000_000
    found = items(0, "due", pages, set(ITEMS))
    assert found["id"].to_pylist() == [f"m{n:03}" for n in range(400)]
