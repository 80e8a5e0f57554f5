"""Doctor's checks of a namespace. They read counters and heads, never `KEYS`, and change nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wheel_sched.cli.doctor_finding import Finding, Patient, ok, problem, warn
from wheel_sched.cli.forgotten import MEND, NOT_LOOKED_AT, NOTICED_MS, overdue, untaken
from wheel_sched.cli.output import instant, span
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore
from wheel_sched.store.items import STATES, Counts

DEAD_CAP = 100_000  # a dispatcher's own default
_SAMPLE = 100  # items a shard whose place is checked


def frozen(patient: Patient) -> Finding:
    """No maintenance was left unfinished."""
    reasons = {f"shard {shard}: {counts.frozen}" for shard, counts in enumerate(patient.counts) if counts.frozen}
    if reasons:
        return problem("frozen", "; ".join(sorted(reasons)[:3]), "wheel-sched reshard --resume")
    return ok("frozen", "no")


def backlog(patient: Patient) -> Finding:
    """What is due is released."""
    heads = [counts.due_head_ms for counts in patient.counts if counts.due_head_ms is not None]
    if not heads:
        return ok("backlog", "nothing waits")
    late_ms = patient.now_ms - min(heads)
    if late_ms <= 0:
        return ok("backlog", f"next due in {span(-late_ms)}")
    if late_ms < NOTICED_MS:
        return ok("backlog", f"the head is {span(late_ms)} late")
    return problem("backlog", f"{overdue(_store(patient)).words}: no dispatcher releases them", MEND)


def retries(patient: Patient) -> Finding:
    """What failed is taken in by a retry service."""
    found = untaken(patient.client, patient.settings)
    if found is None:
        return ok("retries", NOT_LOOKED_AT)
    if not found:
        return ok("retries", "none wait that nobody takes in")
    return problem(
        "retries",
        "; ".join(one.what(patient.now_ms) for one in found[:3]),
        "; ".join(one.mend for one in found),
    )


def leases(patient: Patient) -> Finding:
    """No leases are left lying around."""
    heads = [counts.fly_head_ms for counts in patient.counts if counts.fly_head_ms is not None]
    flying = sum(counts.sizes["fly"] for counts in patient.counts)
    late_ms = patient.now_ms - min(heads) if heads else 0
    if late_ms > NOTICED_MS:
        return warn(
            "leases",
            f"{flying} in flight, the oldest lease ran out {span(late_ms)} ago",
            "start a dispatcher: it takes them back at once",
        )
    return ok("leases", f"{flying} in flight" if flying else "nothing in flight")


def counters(patient: Patient) -> Finding:
    """Counters equal what is really there."""
    wrong = [f"shard {shard}: {text}" for shard, counts in enumerate(patient.counts) for text in _differences(counts)]
    if wrong:
        return problem(
            "counters",
            "; ".join(wrong[:3]),
            "stop the services, `wheel-sched backup`, and `restore` into a new namespace; please report it",
        )
    total = sum(counts.sizes[state] for counts in patient.counts for state in STATES)
    return ok("counters", f"true to the item ({total:,} items)")


def _differences(counts: Counts) -> list[str]:
    sizes = counts.sizes
    pairs: list[tuple[str, int, str, int]] = []
    pairs += [(f"counted {state}", counts.total(state), state, sizes[state]) for state in STATES]
    pairs.append(("bodies", sizes["body"], "waiting, held and in flight", sizes["due"] + sizes["held"] + sizes["fly"]))
    pairs.append(("dead bodies", sizes["deadbody"], "dead", sizes["dead"]))
    pairs.append(("claims", sizes["claim"], "in flight", sizes["fly"]))
    return [f"{left} {mine}, {right} {theirs}" for left, mine, right, theirs in pairs if mine != theirs]


def clock_jumps(patient: Patient) -> Finding:
    """The server's clock did not step."""
    jumps = sum(counts.jumps for counts in patient.counts)
    if not jumps:
        return ok("clock jumps", "none recorded")
    last_ms = max((counts.last_jump_ms for counts in patient.counts), key=abs)
    direction = "forward" if last_ms > 0 else "back"
    return warn(
        "clock jumps",
        f"{jumps} recorded, one {span(abs(last_ms))} {direction}",
        "mend the server's clock source (NTP that slews instead of stepping)",
    )


def dead_letters(patient: Patient) -> Finding:
    """Dead letters are far from being trimmed."""
    dead = [counts.sizes["dead"] for counts in patient.counts]
    trimmed = sum(counts.happened("trimmed") for counts in patient.counts)
    text = f"{sum(dead):,} dead letters" + (f", {trimmed:,} trimmed so far" if trimmed else "")
    if max(dead) >= 0.8 * DEAD_CAP:
        return warn(
            "dead letters",
            f"{text}; a shard holds {max(dead):,} of {DEAD_CAP:,}, the oldest go beyond that",
            "`wheel-sched ls --dead --group`, then replay or delete",
        )
    return ok("dead letters", text)


def readable(patient: Patient) -> Finding:
    """Nothing unreadable was found."""
    count = sum(counts.unreadable for counts in patient.counts)
    if not count:
        return ok("records", "none unreadable")
    return warn(
        "records", f"{count} could not be read and lie among the dead", "`wheel-sched ls --dead --error 'quarantine*'`"
    )


def places(patient: Patient) -> Finding:
    """Items lie in the shard that their route names: a process with an old shard count would put them elsewhere."""
    from wheel_sched.store.operations import Call, Get, ListIds
    from wheel_sched.store.plans import EVER, shard_of

    if patient.shards == 1:
        return ok("places", "one shard")
    store = _store(patient)
    pages: list[Any] = store.execute([Call(s, ListIds("due", 0, EVER, None, _SAMPLE)) for s in range(patient.shards)])
    looked = astray = 0
    for shard, page in enumerate(pages):
        if isinstance(page, Exception):
            raise page
        (items,) = store.execute([Call(shard, Get([item_id for item_id, _ in page.found]))]) if page.found else ([],)
        for item in items:
            if item is not None:
                looked += 1
                astray += shard_of(item.route or item.id, patient.shards) != shard
    if astray:
        return problem(
            "places",
            f"{astray} of {looked} sampled items lie in another shard than their route names",
            "a process runs with an old --shards: restart it, stop all, and reshard to another number and back",
        )
    return ok("places", f"{looked} sampled items lie where they belong")


def _store(patient: Patient) -> DelayStore:
    from wheel_sched.store.redis.backend import RedisBackend
    from wheel_sched.store.redis.conversation import Dialect

    return DelayStore(RedisBackend(patient.client, Dialect(patient.settings.namespace)), shards=patient.shards)


def hand_over(patient: Patient) -> Finding:
    """How due messages get to their topics."""
    try:
        describe = import_module("retry_topic.cli.hand_over").hand_over
    except ImportError:
        return ok("hand-over", "unknown: the retry service is not installed")
    try:
        mode: str = describe(patient.url, patient.settings)
    except ConfigError as error:
        return problem("hand-over", f"--kafka: {error}", "correct the client's settings")
    if mode == "one script":
        return ok("hand-over", "one script: exactly once, store and topics share the server")
    if mode == "transactions":
        return ok("hand-over", "transactions: exactly once for who reads committed records; `wheel-sched kafka doctor`")
    return ok("hand-over", f"{mode}: at least once, with a stable id")


def heading(patient: Patient) -> str:
    """The namespace in a line."""
    return f"namespace {patient.settings.namespace}, {patient.shards} shards, {instant(patient.now_ms)} by its clock"
