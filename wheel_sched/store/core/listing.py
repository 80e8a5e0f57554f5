"""Listing: pages of the items in a state, over all shards, in order of score.

The module has the operation on one shard, and the plan over all shards.

A cursor is JSON: for each shard the last id that was looked at, and its score. An item that keeps its state and score
from the first page to the last is listed once, even when other items come and go. A read costs one call to each shard,
and one or more for each 25 items found: a server that reads many items in one call keeps all other clients waiting. A
filtered page, or one of over 500 items, takes several reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Call, Operation, Plan
from wheel_sched.store.core.get import STEP_IDS, Get
from wheel_sched.store.core.items import MAX_BATCH, Found, State, decode_text, encode_text
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.sorted_set import Entry


@dataclass(slots=True)
class Page:
    """One page of a listing. Pass `cursor` to get the next page; None = this page was the last."""

    found: list[Found]
    cursor: str | None = None


class IdPage(NamedTuple):
    """A page of (id, score). `last`: the last entry that was read (None: no entry). `more`: another page may follow."""

    found: list[tuple[str, int]]
    last: tuple[str, int] | None
    more: bool


_LOOKED = 60  # as in list.lua: how many items a page of one topic looks at


@dataclass(slots=True)
class ListIds(Operation[IdPage]):
    """Read a page of the ids in a state, in order of score, behind `last`. With `topic`, only ids of this topic.

    A page of one topic looks at a bounded number of items, so it may be short or empty although more pages follow.
    """

    script = "list"
    reads = True
    writes = False
    state: State
    least_ms: int
    greatest_ms: int
    last: tuple[str, int] | None
    limit: int
    topic: str | None = None
    token: str = ""

    def argv(self) -> list[Argument]:
        last_id, last_score = self.last or ("", 0)
        place: list[Argument] = [self.state, self.least_ms, self.greatest_ms, encode_text(last_id), last_score]
        return [*place, self.limit, b"" if self.topic is None else b"=" + encode_text(self.topic)]

    def parse(self, reply: Any, shard: int) -> IdPage:
        _, more, last_id, last_score, *rest = reply
        found = [(decode_text(rest[at]), int(float(rest[at + 1]))) for at in range(0, len(rest), 2)]
        last = (decode_text(last_id), int(float(last_score))) if last_id else None
        return IdPage(found, last, more == b"1")

    def in_memory(self, shard: MemoryShard) -> IdPage:
        if self.topic is None:
            page = page_of(shard, self, self.limit)
            more = bool(page) and len(page) == min(self.limit, MAX_BATCH)
            return IdPage(page, page[-1] if page else None, more)
        if (self.state, self.topic) not in shard.now:
            return IdPage([], None, False)
        page = page_of(shard, self, _LOOKED)
        found: list[tuple[str, int]] = []
        looked = 0
        while looked < len(page) and len(found) < self.limit:
            item_id, _ = page[looked]
            if shard.items[encode_text(item_id)].topic == self.topic:
                found.append(page[looked])
            looked += 1
        more = looked < len(page) or len(page) == _LOOKED
        return IdPage(found, page[looked - 1] if looked else None, more)


class IdsWanted(Protocol):
    """What `page_of` needs from a query: state, range of scores, and the last entry of the page before."""

    state: State
    least_ms: int
    greatest_ms: int
    last: tuple[str, int] | None


def page_of(shard: MemoryShard, call: IdsWanted, limit: int) -> list[tuple[str, int]]:
    limit = min(limit, MAX_BATCH)
    page: list[Entry] = []
    for place in (shard.due, shard.ready) if call.state == "due" else (shard.places[call.state],):
        if call.last is None or not call.last[0]:
            page += place.between(call.least_ms, call.greatest_ms, limit)
        else:
            last_id, last_ms = call.last
            page += place.behind(last_ms, encode_text(last_id), call.greatest_ms, limit)
    page = sorted(page)[:limit]
    return [(shard.items[key].id, score_ms) for score_ms, key in page]


_PAGES = 40  # how many pages of at most 500 a listing reads before it hands back a cursor
_EMPTY_PAGE = 0.25  # a page on which no item has the topic counts as this part of a page

Behind = dict[str, tuple[str, int]]


def list_items(shards: int, wanted: ListIds, cursor: str | None, matches: Callable[[Found], bool] | None) -> Plan[Page]:
    """Read one page of items over all shards, in order of score. A page may be short and still have a cursor.

    Args:
        shards: number of shards of the namespace.
        wanted: what to list; the cursor replaces its `last`.
        cursor: the cursor of the page before, None for the first page.
        matches: says for each item whether it belongs to the listing. Defaults to all.

    Raises:
        Rejected: the limit is below 1, or the cursor does not fit this namespace.
    """
    limit, topic = wanted.limit, wanted.topic
    if limit < 1:
        raise Rejected(f"expected limit to be at least 1, got: {limit!r}; nothing was changed")
    behind = read_cursor(cursor, shards)
    found: list[Found] = []
    left = float(_PAGES)
    while left > 0:
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
        left -= 1 if page else _EMPTY_PAGE
    return Page(found, json.dumps(behind))


def _page(shards: range, wanted: ListIds, behind: Behind | None) -> Plan[tuple[list[Found], Behind | None]]:
    behind = behind or {}
    calls: list[Call[Any]] = [Call(shard, replace(wanted, last=behind.get(str(shard)))) for shard in shards]
    replies: list[IdPage] = yield calls
    heads = [
        (score, encode_text(item_id), item_id, shard) for shard in shards for item_id, score in replies[shard].found
    ]
    heads.sort()
    # A shard with more ids has returned only those up to its last one. So the page ends at the earliest such last id.
    ends = [(r.last[1], encode_text(r.last[0])) for r in replies if r.more and r.last is not None]
    end = min(ends, default=None)
    chosen = [head for head in heads if end is None or head[:2] <= end][: wanted.limit]
    places = _by_shard(chosen)
    bodies: dict[str, Found] = {}
    for at in range(0, len(chosen), STEP_IDS):
        answers = yield [Call(shard, Get(ids)) for shard, ids in _by_shard(chosen[at : at + STEP_IDS]).items()]
        bodies |= {
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


def _by_shard(heads: Iterable[tuple[int, bytes, str, int]]) -> dict[int, list[str]]:
    """Group the ids of these entries (score, bytes of the id, id, shard) by shard."""
    places: dict[int, list[str]] = {}
    for _, _, item_id, shard in heads:
        places.setdefault(shard, []).append(item_id)
    return places


def _rewind(taken: Iterable[Found], before: Behind | None) -> Behind:
    """Make a cursor for a page of which only the first items were taken. The next page begins behind these."""
    behind = dict(before or {})
    for item in taken:
        behind[str(item.shard)] = (item.id, item.score_ms)
    return behind


def cursor_behind(taken: Iterable[Found], cursor: str | None, shards: int) -> str:
    """The cursor of a page that ends behind the last of these items.

    Args:
        taken: the items of a page from its beginning, in its order; at least one.
        cursor: the cursor with which that page was read.
        shards: number of shards of the namespace.
    """
    return json.dumps(_rewind(taken, read_cursor(cursor, shards)))


def read_cursor(cursor: str | None, shards: int) -> Behind | None:
    """Read the text of a cursor.

    Raises:
        Rejected: the text is no cursor of this namespace.
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
