"""Listing: pages of a state over all shards, in order of score, as a plan that every store performs.

A cursor is JSON: per shard the last id looked at and its score. What is there from the first page to the last is listed
once, whatever comes and goes meanwhile. A page costs one call to each shard and one for the items found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from wheel_sched.errors import Rejected
from wheel_sched.store.items import MAX_BATCH, Found, Page
from wheel_sched.store.operations import Call, Get, IdPage, ListIds, Plan
from wheel_sched.store.record import encode_text

_PAGES = 40  # how many pages of 500 a filtered listing reads before it hands back a cursor

Behind = dict[str, tuple[str, int]]


def list_items(shards: int, wanted: ListIds, cursor: str | None, matches: Callable[[Found], bool] | None) -> Plan[Page]:
    """One page in order of score over all shards; a filtered page may be short and still have a cursor.

    Args:
        shards: of the namespace.
        wanted: what to list; its `last` is replaced by that of the cursor.
        cursor: of the page before, None for the first.
        matches: asked about each item. Defaults to all.

    Raises:
        Rejected: the limit is below 1, or the cursor is none of this namespace.
    """
    limit, topic = wanted.limit, wanted.topic
    if limit < 1:
        raise Rejected(f"expected limit to be at least 1, got: {limit!r}; nothing was changed")
    behind = read_cursor(cursor, shards)
    found: list[Found] = []
    for _ in range(_PAGES):
        page, behind = yield from _page(range(shards), replace(wanted, limit=min(limit, MAX_BATCH)), behind)
        for index, item in enumerate(page):
            if (topic is None or item.topic == topic) and (matches is None or matches(item)):
                found.append(item)
                if len(found) == limit:
                    rest = page[index + 1 :]
                    if rest:
                        behind = _rewind(page[: index + 1], read_cursor(cursor, shards))
                    return Page(found, json.dumps(behind) if rest or behind is not None else None)
        if behind is None:
            return Page(found)
        cursor = json.dumps(behind)
    return Page(found, json.dumps(behind))


def _page(shards: range, wanted: ListIds, behind: Behind | None) -> Plan[tuple[list[Found], Behind | None]]:
    behind = behind or {}
    calls: list[Call[Any]] = [Call(shard, replace(wanted, last=behind.get(str(shard)))) for shard in shards]
    replies: list[IdPage] = yield calls
    heads = [
        (score, encode_text(item_id), item_id, shard) for shard in shards for item_id, score in replies[shard].found
    ]
    heads.sort()
    # a shard that has more behind what it looked at may have nothing before that: the page ends there
    ends = [(r.last[1], encode_text(r.last[0])) for r in replies if r.more and r.last is not None]
    end = min(ends, default=None)
    chosen = [head for head in heads if end is None or head[:2] <= end][: wanted.limit]
    places: dict[int, list[str]] = {}
    for _, _, item_id, shard in chosen:
        places.setdefault(shard, []).append(item_id)
    answers = (yield [Call(shard, Get(ids)) for shard, ids in places.items()]) if places else []
    bodies: dict[str, Found] = {
        item.id: item for part in answers for item in part if item is not None and item.state == wanted.state
    }
    going_on = dict(behind)
    for score, _, item_id, shard in chosen:
        going_on[str(shard)] = (item_id, score)
    for shard, reply in enumerate(replies):
        if reply.last is not None and len(places.get(shard, ())) == len(reply.found):
            going_on[str(shard)] = reply.last
    page = []
    for score, _, item_id, shard in chosen:
        item = bodies.get(item_id)
        if item is not None:
            item.score_ms, item.shard = score, shard
            page.append(item)
    more = len(chosen) < len(heads) or any(reply.more for reply in replies)
    return page, going_on if more else None


def _rewind(taken: Iterable[Found], before: Behind | None) -> Behind:
    """The cursor behind the items taken from a page that was not used up."""
    behind = dict(before or {})
    for item in taken:
        behind[str(item.shard)] = (item.id, item.score_ms)
    return behind


def read_cursor(cursor: str | None, shards: int) -> Behind | None:
    """A cursor as it was handed out.

    Raises:
        Rejected: it was not handed out by this namespace.
    """
    if cursor is None:
        return None
    try:
        places = {str(int(shard)): (str(item_id), int(score)) for shard, (item_id, score) in json.loads(cursor).items()}
        if any(not 0 <= int(shard) < shards for shard in places):
            raise ValueError(cursor)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Rejected(f"expected a cursor from an earlier page, got: {cursor[:80]!r}; nothing was changed") from error
    return places
