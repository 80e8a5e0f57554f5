"""Which stored message an id means, for every command that takes ids.

An id is one of three: what `list` shows, which is one attempt; the same without its attempt; or what handlers and logs
know the message by (its header `retry-id`). Under the last one the store finds nothing by itself where it was given
when the message was published, as every group that reads the topic has it: then the store's items are looked through,
up to 100,000 of them, a thousand at a time. Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from retry_topic.cli.filters import Entry, entry_of
from retry_topic.home import Home
from wheel_sched.cli.failing import CommandFailed
from wheel_sched.cli.output import amount, note
from wheel_sched.store import MAX_BATCH, Found
from wheel_sched.store.items import STATES

_ATTEMPTS_TRIED = 100  # of a message named without its attempt
_LOOKED_THROUGH = 100_000
_KEPT = 64  # characters of a published id that an item's id begins with, see `RetryState.known_as`
_ATTEMPT = re.compile(r"(.*?)(?:r([0-9]+))?\.([0-9]+)")


def find_messages(home: Home, ids: Sequence[str], unchanged: str = "") -> list[Entry]:
    """The messages of these ids, each once; where one is stored under another id, a note says so.

    Args:
        home: where they are stored.
        ids: see the module.
        unchanged: said of an error: "nothing was changed". Defaults to nothing.

    Raises:
        CommandFailed: there is none of an id, or there are several; nothing was changed.
    """
    wanted = list(dict.fromkeys(ids))
    found = dict(zip(wanted, home.store.get(wanted, anywhere=True), strict=True))
    for item_id in wanted:
        if found[item_id] is None:
            attempts = [f"{item_id}.{number}" for number in range(1, _ATTEMPTS_TRIED + 1)]
            items = home.store.get(attempts, anywhere=True)
            found[item_id] = next((item for item in reversed(items) if item is not None), None)
    missing = [item_id for item_id in wanted if found[item_id] is None]
    every = True
    if missing:
        known, every = _known_as(home, missing)
        problems = []
        for item_id in missing:
            latest = _latest(known.get(item_id, []))
            if len(latest) > 1:
                stored = ", ".join(sorted(item.id for item in latest)[:5])
                problems.append(f"{item_id} is the id of {amount(len(latest), 'message')}: say which of {stored}")
            elif latest:
                found[item_id] = latest[0]
        if problems:
            raise CommandFailed("; ".join([*problems[:5], *([unchanged] if unchanged else [])]))
    missing = [item_id for item_id in wanted if found[item_id] is None]
    if missing:
        raise CommandFailed(_absent(missing, unchanged, every))
    chosen: dict[str, Entry] = {}
    for item_id, item in found.items():
        if item is not None:
            if item.id != item_id:
                note(f"{item_id} is stored as {item.id}")
            chosen[item.id] = entry_of(item)
    return list(chosen.values())


def _absent(ids: Sequence[str], unchanged: str, every: bool) -> str:
    where = "" if every else f"among the {_LOOKED_THROUGH:,} that were looked through; give the id that `list` shows"
    why = "it was delivered or deleted, never stored here, or its failure still waits for a retry service"
    said = f"there is no message {', '.join(ids[:5])} {where}".rstrip()
    told = "; ".join(filter(None, [unchanged, why, "see `wheel-sched list` and `wheel-sched stats`"]))
    return f"{said}: {told}"


def _known_as(home: Home, ids: Sequence[str]) -> tuple[dict[str, list[Found]], bool]:
    """The items whose message has one of these ids, and whether all items were looked at."""
    known: dict[str, list[Found]] = {}
    wanted, starts = set(ids), tuple(item_id[:_KEPT] for item_id in ids)
    looked_at = 0
    for page in _pages(home):
        for item in page:
            if item.id.startswith(starts):
                state = entry_of(item).letter.state
                for name in wanted & {f"{state.id}", state.known_as, state.stem}:
                    known.setdefault(name, []).append(item)
        looked_at += len(page)
        if looked_at >= _LOOKED_THROUGH:
            return known, False
    return known, True


def _pages(home: Home) -> Iterator[list[Found]]:
    for state in STATES:
        cursor = None
        while True:
            page = home.store.list_items(state, cursor=cursor, limit=MAX_BATCH)
            yield page.found
            cursor = page.cursor
            if cursor is None:
                break


def _latest(items: Iterable[Found]) -> list[Found]:
    """Of each message its latest attempt, after its latest replay."""
    latest: dict[str, tuple[tuple[int, int], Found]] = {}
    for item in items:
        parts = _ATTEMPT.fullmatch(item.id)
        name, place = (item.id, (0, 0)) if parts is None else (parts[1], (int(parts[2] or 0), int(parts[3])))
        if name not in latest or latest[name][0] < place:
            latest[name] = place, item
    return [item for _, item in latest.values()]
