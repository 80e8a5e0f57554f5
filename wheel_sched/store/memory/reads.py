"""Operations that write nothing, one function each: the twins of the `no-writes` scripts."""

from __future__ import annotations

from itertools import islice

from wheel_sched.store.freezing import ListTries, Tried
from wheel_sched.store.items import MAX_BATCH, Counts, Found, Window
from wheel_sched.store.memory.shard import MemoryShard, Stored, plain
from wheel_sched.store.operations import Count, Find, Get, IdPage, Known, ListIds, Logged, Look, ReadLog, Scan, Scanned
from wheel_sched.store.record import Record, decode_text, encode_text


def look(shard: MemoryShard, call: Look) -> Window:
    found = shard.due.up_to(shard.now_ms + call.ahead_ms, call.limit)
    dues = [(shard.items[key].id, due_ms) for due_ms, key in found]
    return Window(0, shard.now_us, shard.epoch, *shard.heads(), shard.mark.id, dues)


def get(shard: MemoryShard, call: Get) -> list[Found | None]:
    return [_found(shard, item_id) for item_id in call.ids]


def _found(shard: MemoryShard, item_id: str) -> Found | None:
    item = shard.items.get(encode_text(item_id))
    if item is None:
        return None
    score_ms = shard.places[item.state].score(item.key)
    assert score_ms is not None, item  # noqa: S101  # an id is in the place its state names
    return Found(
        item_id, item.state, score_ms, item.version, item.topic, item.body, _reason(item), item.refs, item.route
    )


def _reason(item: Stored) -> str:
    if item.state == "due":
        return ""
    if item.state == "fly":
        cut, refs = "!" if item.cancelled else "", "r" if item.refs else "-"
        return f"{cut}{item.claim}:{item.claimed_due_ms}:{refs}:{item.topic}"
    return item.reason.decode("utf-8", "replace")


def list_ids(shard: MemoryShard, call: ListIds) -> IdPage:
    if call.topic is None:
        page = _page(shard, call, call.limit)
        more = bool(page) and len(page) == min(call.limit, MAX_BATCH)
        return IdPage(page, page[-1] if page else None, more)
    if (call.state, call.topic) not in shard.now:
        return IdPage([], None, False)
    page = _page(shard, call, MAX_BATCH)
    found: list[tuple[str, int]] = []
    looked = 0
    while looked < len(page) and len(found) < call.limit:
        item_id, _ = page[looked]
        if shard.items[encode_text(item_id)].topic == call.topic:
            found.append(page[looked])
        looked += 1
    more = looked < len(page) or len(page) == MAX_BATCH
    return IdPage(found, page[looked - 1] if looked else None, more)


def _page(shard: MemoryShard, call: ListIds | Scan, limit: int) -> list[tuple[str, int]]:
    place = shard.places[call.state]
    limit = min(limit, MAX_BATCH)
    if call.last is None or not call.last[0]:
        page = place.between(call.least_ms, call.greatest_ms, limit)
    else:
        last_id, last_ms = call.last
        page = place.behind(last_ms, encode_text(last_id), call.greatest_ms, limit)
    return [(shard.items[key].id, score_ms) for score_ms, key in page]


def scan(shard: MemoryShard, call: Scan) -> list[Scanned]:
    page = _page(shard, call, call.limit)
    if not call.records:
        return [Scanned(item_id, score_ms, None, "") for item_id, score_ms in page]
    scanned = []
    for item_id, score_ms in page:
        item = shard.items[encode_text(item_id)]
        record = Record(item.version, item.topic, item.route, item.refs, item.body)
        scanned.append(Scanned(item_id, score_ms, record, _reason(item)))
    return scanned


def count(shard: MemoryShard, call: Count) -> Counts:
    sizes: dict[str, int] = {
        **{state: len(place) for state, place in shard.places.items()},
        "body": len(shard.items) - len(shard.dead),
        "deadbody": len(shard.dead),
        "claim": len(shard.fly),
        "why": len(shard.held),
    }
    return Counts(
        shard.now_us,
        dict(shard.now),
        dict(shard.ever),
        sizes,
        *shard.heads(),
        epoch=shard.epoch,
        jumps=shard.jumps,
        last_jump_ms=shard.last_jump_ms,
        paused=dict(shard.paused),
        frozen=shard.frozen,
    )


def find(shard: MemoryShard, call: Find) -> list[str]:
    keys = list(shard.refs.get(decode_text(encode_text(call.ref)), ()))
    return [shard.items[key].id for key in keys[: call.limit]]


def list_tries(shard: MemoryShard, call: ListTries) -> list[Tried]:
    now_s = shard.now_ms // 1000
    order = sorted(
        (expiry_s * 1000 + attempts, key) for key, (expiry_s, attempts) in shard.tries.items() if expiry_s >= now_s
    )
    return [
        Tried(decode_text(key), score % 1000, score // 1000 * 1000)
        for score, key in order[call.start : call.start + MAX_BATCH]
    ]


def logged(shard: MemoryShard, call: ReadLog) -> Logged:
    after = int(call.last) if call.last else 0
    page = list(
        islice(((number, entry) for number, entry in shard.log if number > after), min(call.limit, 2 * MAX_BATCH))
    )
    return Logged(str(page[-1][0]) if page else "", [entry for _, entry in page])


def known(shard: MemoryShard, call: Known) -> list[bool]:
    answers = []
    for item_id, name in call.pairs:
        key, topic = encode_text(item_id), plain(name)
        item = shard.items.get(key)
        waits = item is not None and item.state != "dead" and item.topic == topic
        answers.append(waits or shard.is_known(key, topic))
    return answers
