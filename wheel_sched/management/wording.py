"""Numbers, lengths of time and instants in words, for people."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def one_line(text: str, limit: int = 0) -> str:
    """The text on one line, cut to at most `limit` characters; 0: not cut."""
    flat = " ".join(text.split()) if any(c in text for c in "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029") else text
    return flat if not limit or len(flat) <= limit else flat[: limit - 3] + "..."


def state_word(state: str) -> str:
    """The state of an item in a word for people: "waiting" for due, "in flight" for leased."""
    return {"due": "waiting", "leased": "in flight"}.get(state, state)


def amount(count: int, thing: str) -> str:
    """A number with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def span(delay_ms: int) -> str:
    """A length of time in at most two units: `3m12s`, `2d4h`, `2.7s`, `840ms`."""
    if delay_ms < 1_000:
        return f"{delay_ms}ms"
    if delay_ms < 10_000:
        return f"{delay_ms // 100 / 10:g}s"
    for place, (unit, size_ms) in enumerate(_UNITS):
        if delay_ms >= size_ms:
            count, rest = divmod(delay_ms, size_ms)
            below = _UNITS[place + 1] if place + 1 < len(_UNITS) else None
            return f"{count}{unit}" + (f"{rest // below[1]}{below[0]}" if below and rest >= below[1] else "")
    return "0s"


def relative(at_ms: int, now_ms: int) -> str:
    """An instant relative to now: `in 3m12s`, `5s ago` or `now`."""
    step_ms = at_ms - now_ms
    if step_ms == 0:
        return "now"
    return f"in {span(step_ms)}" if step_ms > 0 else f"{span(-step_ms)} ago"


def instant(at_ms: int) -> str:
    """Epoch milliseconds as RFC 3339 in UTC."""
    stamp = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{at_ms % 1000:03d}Z"


def when(at_ms: int, now_ms: int) -> str:
    """An instant as RFC 3339 and relative to now."""
    return f"{instant(at_ms)} ({relative(at_ms, now_ms)})"
