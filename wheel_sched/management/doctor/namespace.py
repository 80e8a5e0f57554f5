"""Checks of `doctor` on a namespace. They read counters and some items, never call `KEYS`, and change nothing."""

from __future__ import annotations

from typing import Any

from wheel_sched.management.doctor.finding import ExaminedTarget, Finding, ok, problem, warn
from wheel_sched.management.members import counted
from wheel_sched.management.overdue import is_noticed, overdue, overdue_problem
from wheel_sched.management.wording import span
from wheel_sched.store import DelayStore
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import STATES

DEAD_CAP = 100_000  # the default of dispatchers
FROZEN_FIX = "wheel-sched reshard --resume"
CLOCK_FIX = "correct the server's clock source: use NTP that slews instead of stepping"
_SAMPLE = 100  # items of each shard whose place is checked


def frozen(target: ExaminedTarget) -> Finding:
    """Check that no interrupted maintenance, such as a reshard, has left the namespace frozen."""
    reasons = {f"shard {shard}: {counts.frozen}" for shard, counts in enumerate(target.counts) if counts.frozen}
    if reasons:
        return problem("frozen", "; ".join(sorted(reasons)[:3]), FROZEN_FIX)
    return ok("frozen", "no maintenance is unfinished")


def members(target: ExaminedTarget) -> Finding:
    """Report which members are live. Other checks, such as `backlog`, find out whether a member is missing."""
    return ok("members", f"live: {counted(target.members)}" if target.members else "none has announced itself")


def backlog(target: ExaminedTarget) -> Finding:
    """Check that a dispatcher releases due items."""
    heads = [counts.due_head_ms for counts in target.counts if counts.due_head_ms is not None]
    if not heads:
        return ok("backlog", "nothing waits")
    late_ms = target.now_ms - min(heads)
    if late_ms <= 0:
        return ok("backlog", f"next due in {span(-late_ms)}")
    if not is_noticed(late_ms):
        return ok("backlog", f"the first item is {span(late_ms)} late")
    topics = sorted({topic for counts in target.counts for state, topic in counts.now if state == "due"})
    found = overdue_problem(overdue(_store(target)), topics, target.members, target.now_ms)
    return problem("backlog", *found) if found else ok("backlog", "the overdue items have just gone out")


def leases(target: ExaminedTarget) -> Finding:
    """Check that no lease ran out 5 s ago or earlier."""
    heads = [counts.lease_head_ms for counts in target.counts if counts.lease_head_ms is not None]
    in_flight = sum(counts.sizes["leased"] for counts in target.counts)
    late_ms = target.now_ms - min(heads) if heads else 0
    if is_noticed(late_ms):
        return warn(
            "leases",
            f"{in_flight} in flight, the oldest lease ran out {span(late_ms)} ago",
            "start a dispatcher: it makes these items due again at once",
        )
    return ok("leases", f"{in_flight} in flight" if in_flight else "nothing in flight")


def counters(target: ExaminedTarget) -> Finding:
    """Check that the counters equal the numbers of items."""
    wrong = [f"shard {shard}: {text}" for shard, counts in enumerate(target.counts) for text in _differences(counts)]
    if wrong:
        return problem(
            "counters",
            "; ".join(wrong[:3]),
            "stop the services, `wheel-sched backup`, and `restore` into a new namespace; please report it",
        )
    total = sum(counts.sizes[state] for counts in target.counts for state in STATES)
    return ok("counters", f"equal to the items ({total:,})")


def _differences(counts: Counts) -> list[str]:
    sizes = counts.sizes
    pairs: list[tuple[str, int, str, int]] = []
    pairs += [(f"counted {state}", counts.total(state), state, sizes[state]) for state in STATES]
    pairs.append(
        ("bodies", sizes["body"], "waiting, held and in flight", sizes["due"] + sizes["held"] + sizes["leased"])
    )
    pairs.append(("dead bodies", sizes["deadbody"], "dead", sizes["dead"]))
    pairs.append(("claims", sizes["claim"], "in flight", sizes["leased"]))
    return [f"{left} {mine}, {right} {theirs}" for left, mine, right, theirs in pairs if mine != theirs]


def clock_jumps(target: ExaminedTarget) -> Finding:
    """Check that the server's clock has not jumped."""
    jumps = sum(counts.jumps for counts in target.counts)
    if not jumps:
        return ok("clock jumps", "none recorded")
    last_ms = max((counts.last_jump_ms for counts in target.counts), key=abs)
    direction = "forward" if last_ms > 0 else "back"
    return warn(
        "clock jumps",
        f"{jumps} recorded, one {span(abs(last_ms))} {direction}",
        CLOCK_FIX,
    )


def dead_letters(target: ExaminedTarget) -> Finding:
    """Check that no shard is near the default limit of dead letters (80 %), above which the oldest are deleted."""
    dead = [counts.sizes["dead"] for counts in target.counts]
    trimmed = sum(counts.happened("trimmed") for counts in target.counts)
    text = f"{sum(dead):,} dead letters" + (f", {trimmed:,} trimmed so far" if trimmed else "")
    if max(dead) >= 0.8 * DEAD_CAP:
        return warn(
            "dead letters",
            f"{text}; a shard holds {max(dead):,} of {DEAD_CAP:,} allowed; above this number, the oldest are deleted",
            "find the cause, then replay or delete them",
        )
    return ok("dead letters", text)


def readable(target: ExaminedTarget) -> Finding:
    """Check that no record became a dead letter because it was unreadable."""
    count = sum(counts.unreadable for counts in target.counts)
    if not count:
        return ok("records", "none unreadable")
    return warn(
        "records",
        f"{count} unreadable records became dead letters",
        "list the dead letters whose reason begins with quarantine",
    )


def places(target: ExaminedTarget) -> Finding:
    """Check that sampled waiting items are in the shard that their route (or else their id) selects.

    A process that uses an old shard count stores items in wrong shards.
    """
    from wheel_sched.store.core.call import Call
    from wheel_sched.store.core.get import Get
    from wheel_sched.store.core.items import MAX_DUE_MS
    from wheel_sched.store.core.listing import ListIds
    from wheel_sched.store.core.plans import shard_of

    if target.shards == 1:
        return ok("places", "one shard")
    store = _store(target)
    pages: list[Any] = store.execute(
        [Call(s, ListIds("due", 0, MAX_DUE_MS, None, _SAMPLE)) for s in range(target.shards)]
    )
    looked = astray = 0
    for shard, page in enumerate(pages):
        if isinstance(page, Exception):
            raise page
        (items,) = store.execute([Call(shard, Get([item_id for item_id, _ in page.found]))]) if page.found else ([],)
        for item in items:
            if item is not None:
                looked += 1
                astray += shard_of(item.route or item.id, target.shards) != shard
    if astray:
        return problem(
            "places",
            f"{astray} of {looked} sampled items are not in the shard of their route",
            "a process runs with an old --shards: stop all processes, and reshard to another number and back",
        )
    return ok("places", f"{looked} sampled items are in the shards of their routes")


def _store(target: ExaminedTarget) -> DelayStore:
    from wheel_sched.store.redis.backend import RedisBackend
    from wheel_sched.store.redis.round_trips import Dialect

    return DelayStore(RedisBackend(target.client, Dialect(target.settings.namespace)), shards=target.shards)
