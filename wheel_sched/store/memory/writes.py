"""Operations that claim and store, one function each: the twins of the scripts of the same name.

Each decides and answers as its script does, outcome by outcome; the conformance suite and the model test run the same
histories on both. What is repeated under a token is answered from the first time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wheel_sched.errors import Rejected, StaleCount, StaleEpoch, StalePosition, TakenId
from wheel_sched.store.items import (
    ENDED,
    MAX_BATCH,
    NO_LEASE_END_MS,
    Claim,
    Claimed,
    Dead,
    Done,
    Fence,
    Held,
    Item,
    Next,
    Outcome,
    Position,
    Settled,
    Settlement,
    Stored,
    Swept,
    Tries,
)
from wheel_sched.store.memory import shard as place
from wheel_sched.store.memory.shard import MemoryShard, plain
from wheel_sched.store.operations import (
    ClaimDue,
    CloseEpoch,
    Extend,
    Log,
    Pause,
    Remember,
    ReportJump,
    Restore,
    Schedule,
    Settle,
    Sweep,
    bounded_reason,
)
from wheel_sched.store.record import encode_text


def check_batch(count: int) -> None:
    """Refuse what a script refuses.

    Raises:
        Rejected: the batch is too large.
    """
    if not 0 <= count <= MAX_BATCH:
        raise Rejected(f"at most {MAX_BATCH} items a call, got: {count}; nothing was changed")


def schedule(shard: MemoryShard, call: Schedule) -> Stored:
    said = shard.recall(call.token)
    if said is not None:
        return Stored(list(said), shard.now_us)
    check_batch(len(call.items) + len(call.graves))
    position = call.fence if isinstance(call.fence, Position) else None
    fence = call.fence if isinstance(call.fence, Fence) else None
    if position is not None and shard.positions.get(position.source) != position.expected:
        raise StalePosition(shard.positions.get(position.source))
    if position is not None:
        _compare(shard, call.tries)
        _find_taken(shard, call)
    shard.seq += 1
    outcomes = []
    closed = fence is not None and fence.epoch <= shard.fences.get(fence.writer, -1)
    brought: set[bytes] = set()
    if fence is not None and not closed:
        brought = shard.brought.setdefault((fence.writer, fence.epoch), brought)
    for given in call.items:
        key = encode_text(given.id)
        known = closed or key in brought or key in shard.items
        known = known or bool(call.known_ms and shard.is_known(key, plain(given.topic)))
        brought.add(key)
        if known:
            outcomes.append(Outcome.DUPLICATE)
            continue
        route = plain(given.route) if given.route else None
        refs = tuple(map(plain, given.refs)) if given.refs else ()
        item = place.Stored(key, plain(given.id), shard.seq, plain(given.topic), route, refs, given.body)
        shard.items[key] = item
        if refs:
            shard.add_refs(item)
        due_ms = given.due_ms
        state = shard.put_held(item, 0, b"parked") if due_ms is None else shard.put_waiting(item, due_ms)
        shard.moves(item.topic, None, state)
        shard.event("accepted", item.topic)
        if call.known_ms:
            shard.make_known(item, max(due_ms or 0, shard.now_ms) + call.known_ms)
        outcomes.append(Outcome.STORED if state == "due" else Outcome.HELD)
    for given, reason in call.graves:
        outcomes.append(_bury(shard, given, reason))
    if position is not None:
        shard.positions[position.source] = position.next
    for record, attempts, expiry_ms in call.tries:
        if expiry_ms is not None:
            _raise(shard, encode_text(record), min(attempts, ENDED - 1), expiry_ms)
    shard.record_answer(call.token, tuple(outcomes))
    return Stored(outcomes, shard.now_us)


def _compare(shard: MemoryShard, tries: Sequence[Tries]) -> None:
    for key, attempts, expiry_ms in tries:
        known = _tries(shard, encode_text(key))
        if known != attempts if expiry_ms is None else known >= attempts or known == ENDED:
            raise StaleCount(f"{key!r} has {known}: nothing was stored; decide anew")


def _find_taken(shard: MemoryShard, call: Schedule) -> None:
    own: set[bytes] = set()
    for item in (*call.items, *(item for item, _ in call.graves)):
        key = encode_text(item.id)
        if key in shard.items or key in own:
            raise TakenId(f"{item.id!r} is there already: nothing was stored; look it up")
        own.add(key)


def _bury(shard: MemoryShard, given: Item, reason: str) -> Outcome:
    key = encode_text(given.id)
    if key in shard.items:
        return Outcome.DUPLICATE
    route, refs = plain(given.route) if given.route else None, tuple(map(plain, given.refs))
    item = place.Stored(key, plain(given.id), shard.seq, plain(given.topic), route, refs, given.body)
    shard.items[key] = item
    shard.add_refs(item)
    shard.moves(item.topic, None, shard.put_dead(item, bounded_reason(reason)))
    shard.event("accepted", item.topic)
    return Outcome.STORED


def close_epoch(shard: MemoryShard, call: CloseEpoch) -> int:
    fence = call.fence
    last = max(fence.epoch, shard.fences.get(fence.writer, -1))
    shard.fences[fence.writer] = last
    shard.brought.pop((fence.writer, fence.epoch), None)
    return last


def claim(shard: MemoryShard, call: ClaimDue) -> Claim:
    check_batch(call.limit)
    said = shard.recall(call.token)
    if said is not None:
        return _claimed_before(shard, *said)
    if call.epoch is not None and call.epoch < shard.epoch:
        raise StaleEpoch(
            f"the epoch is {shard.epoch}, the call came with {call.epoch}: nothing was claimed; read the window again"
        )
    shard.recover(MAX_BATCH, call.lapse_cap)
    shard.forget_earlier()
    until_ms = shard.now_ms if call.until_ms is None else min(call.until_ms, shard.now_ms)
    taken = shard.take(call.limit, until_ms)
    if not taken:
        return Claim(0, 0, shard.now_us, shard.epoch, *shard.heads(), [])
    shard.claims = max(shard.claims, call.above) + 1
    number = shard.claims
    deadline_ms = NO_LEASE_END_MS if call.lease_ms is None else shard.now_ms + call.lease_ms
    for due_ms, item in taken:
        item.state, item.claim, item.claimed_due_ms, item.cancelled = "fly", number, due_ms, False
        shard.fly.add(item.key, deadline_ms)
        shard.moves(item.topic, "due", "fly")
    shard.record_answer(call.token, (number, [item.key for _, item in taken]))
    items = [_claimed(item) for _, item in taken]
    return Claim(0, number, shard.now_us, shard.epoch, *shard.heads(), items)


def _claimed_before(shard: MemoryShard, number: int, keys: list[bytes]) -> Claim:
    """The same batch, as far as it is still under this claim."""
    items = (shard.items.get(key) for key in keys)
    still = [_claimed(item) for item in items if item is not None and item.state == "fly" and item.claim == number]
    return Claim(0, number, shard.now_us, shard.epoch, *shard.heads(), still)


def _claimed(item: place.Stored) -> Claimed:
    record = item.version, item.topic, item.body, item.refs, item.route
    return Claimed(item.id, item.claimed_due_ms, *record, lapses=item.lapses)


def settle(shard: MemoryShard, call: Settle) -> Settled:
    said = shard.recall(call.token)
    if said is not None:
        return Settled(list(said), shard.now_us, *shard.heads())
    check_batch(len(call.settlements))
    outcomes = [Outcome.STALE] * len(call.settlements)
    versions = shard.sequence()
    done, rest = call.order()
    for i in done + rest:
        settlement = call.settlements[i]
        item = shard.items.get(encode_text(settlement.id))
        if item is None or item.state != "fly" or item.claim != call.claim:
            continue
        wanted = settlement.version if isinstance(settlement, Done | Next) else None
        if wanted is not None and wanted != item.version and not item.cancelled:
            outcomes[i] = Outcome.OTHER_VERSION
            continue
        shard.fly.discard(item.key)
        item.lapses = 0
        outcomes[i] = Outcome.DONE
        if isinstance(settlement, Done):
            shard.remove(item, "fly", "completed")
        elif item.cancelled and not isinstance(settlement, Dead):
            outcomes[i] = Outcome.CANCELLED
            shard.remove(item, "fly", "cancelled")
        else:
            _place(shard, item, settlement, versions)
    shard.trim_dead_above(call.dead_cap, MAX_BATCH)
    shard.record_answer(call.token, tuple(outcomes))
    return Settled(outcomes, shard.now_us, *shard.heads())


def _place(shard: MemoryShard, item: place.Stored, settlement: Settlement, versions: Iterator[int]) -> None:
    shard.moves(item.topic, "fly", None)
    if isinstance(settlement, Next | Dead) and settlement.body is not None:
        shard.rewrite(item, next(versions), settlement.topic, settlement.route, settlement.refs, settlement.body)
    match settlement:
        case Dead(reason=reason):
            state = shard.put_dead(item, bounded_reason(reason))
        case Held(reason=reason):
            state = shard.put_held(item, 0, bounded_reason(reason))
        case Next(due_ms=None):
            state = shard.put_held(item, 0, b"parked")
        case Next(due_ms=int() as due_ms):
            state = shard.put_waiting(item, due_ms)
        case _:
            raise TypeError(f"expected Done, Next, Held or Dead, got: {settlement!r}")
    shard.moves(item.topic, None, state)


def extend(shard: MemoryShard, call: Extend) -> Settled:
    check_batch(len(call.ids))
    outcomes = []
    for item_id in call.ids:
        item = shard.items.get(encode_text(item_id))
        if item is None or item.state != "fly" or item.claim != call.claim:
            outcomes.append(Outcome.STALE)
            continue
        shard.fly.add(item.key, shard.now_ms + call.lease_ms)
        outcomes.append(Outcome.CANCELLED if item.cancelled else Outcome.DONE)
    return Settled(outcomes, shard.now_us, *shard.heads())


def pause(shard: MemoryShard, call: Pause) -> tuple[int, int]:
    """One page of pausing or resuming: (moved, where to go on or -1)."""
    topic = plain(call.topic)
    if call.verb == "resume":
        return _resume(shard, call, topic)
    shard.paused.setdefault(topic, shard.now_ms)
    found = shard.due.by_rank(call.start, MAX_BATCH)
    moved = 0
    for due_ms, key in found:
        item = shard.items[key]
        if item.topic == topic:
            shard.due.discard(key)
            shard.moves(topic, "due", shard.put_held(item, due_ms, b"paused"))
            moved += 1
    return moved, call.start + len(found) - moved if found else -1


def _resume(shard: MemoryShard, call: Pause, topic: str) -> tuple[int, int]:
    shard.paused.pop(topic, None)
    index = shard.held_index.get((b"paused", topic))
    found = index.by_rank(0, MAX_BATCH) if index else []
    total = max(call.total, 1)
    for rank, (due_ms, key) in enumerate(found, call.start):
        overdue = due_ms <= shard.now_ms and call.spread_ms > 0
        spread_to_ms = shard.now_ms + call.spread_ms * min(rank, total) // total
        item = shard.items[key]
        shard.drop_held(item)
        shard.moves(topic, "held", shard.put_due(item, spread_to_ms if overdue else due_ms))
    return len(found), call.start + len(found) if found else -1


def sweep(shard: MemoryShard, call: Sweep) -> Swept:
    recovered = shard.recover(MAX_BATCH, call.lapse_cap)
    shard.trim_dead_above(call.dead_cap, MAX_BATCH)
    if call.dead_age_ms > 0:
        shard.trim_dead([key for _, key in shard.dead.up_to(shard.now_ms - call.dead_age_ms, MAX_BATCH)])
    _forget_tries(shard)
    return Swept(0, shard.now_us, shard.epoch, *shard.heads(), recovered)


def remember(shard: MemoryShard, call: Remember) -> list[int]:
    known_of_all = []
    for name, attempts, expiry_ms in call.tries:
        key = encode_text(name)
        known_of_all.append(_raise(shard, key, attempts, expiry_ms) if attempts > 0 else _tries(shard, key))
    return known_of_all


def _tries(shard: MemoryShard, key: bytes) -> int:
    """How many attempts a record knows of."""
    until_s, known = shard.tries.get(key, (0, 0))
    return known if until_s * 1000 > shard.now_ms else 0


def _forget_tries(shard: MemoryShard) -> None:
    """Records past their time go."""
    now_s = shard.now_ms // 1000
    for key in [key for key, (expiry_s, _) in shard.tries.items() if expiry_s < now_s]:
        del shard.tries[key]
    shard.tries_at_most = max(place.TRIES_UNSEEN, 2 * len(shard.tries))


def _raise(shard: MemoryShard, key: bytes, attempts: int, expiry_ms: int) -> int:
    known = max(_tries(shard, key), attempts if attempts == ENDED else min(attempts, ENDED - 1))
    shard.tries[key] = max(-(-expiry_ms // 1000), shard.tries.get(key, (0, 0))[0]), known
    if len(shard.tries) > shard.tries_at_most:  # they have doubled since somebody looked
        _forget_tries(shard)
    return known


def log(shard: MemoryShard, call: Log) -> int:
    number = shard.log[-1][0] if shard.log else 0
    shard.log.extend((number + place, entry) for place, entry in enumerate(call.entries, 1))
    while len(shard.log) > call.keep:
        shard.log.popleft()
    return len(call.entries)


def report_jump(shard: MemoryShard, call: ReportJump) -> int:
    if call.epoch == shard.epoch:
        shard.jumped(call.step_ms)
    return shard.epoch


def restore(shard: MemoryShard, call: Restore) -> int:
    put = 0
    for found in call.found:
        key = encode_text(found.id)
        if key in shard.items:
            continue
        route = plain(found.route) if found.route else None
        refs = tuple(map(plain, found.refs))
        item = place.Stored(key, plain(found.id), found.version, plain(found.topic), route, refs, found.body)
        shard.items[key] = item
        shard.seq = max(shard.seq, found.version)
        shard.add_refs(item)
        if found.state == "dead":
            item.state, item.reason = "dead", bounded_reason(found.reason)
            shard.dead.add(key, found.score_ms)
            shard.event("died", item.topic)
        elif found.state == "held":
            shard.put_held(item, found.score_ms, bounded_reason(found.reason))
            if found.reason.startswith("ordered: key "):  # stands in line again, behind a head that is not known
                shard.gates.rebuild(found.reason.removeprefix("ordered: key "), key, found.score_ms, shard.now_ms)
        else:  # one in flight is due when its lease would have ended
            shard.put_due(item, found.score_ms)
        shard.moves(item.topic, None, item.state)
        shard.event("accepted", item.topic)
        put += 1
    return put
