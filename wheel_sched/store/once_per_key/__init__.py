"""Once per key: of several items of one topic that are scheduled under one key, only one goes out.

    collapse    the first one: later ones are not stored while one waits
    debounce    the last one: each new one replaces the one that waits, and has its own due time

`collapse_ref` and `debounce_ref` make a ref. Every method that schedules new items treats an item with this ref as said
above; `replace`, `restore`, `bury` and `OrderedKeys.park` do not. All items of a key must lie in one shard: give them
the route `route_of(topic, key)`.

An item waits for its key while it is due later, due now, or held because its topic is paused. An item in flight has
left: the next one is stored beside it, and both go out if the first waits again. A waiting item that is replaced leaves
the store and never goes out.
`Stored.others` names, for each new item that was not stored or that replaced another, that other item. For each topic
the store counts the items that it has `dropped` (not stored) and `replaced` (removed before their release).
"""

from __future__ import annotations

import hashlib

from wheel_sched.errors import Rejected
from wheel_sched.store.once_per_key.waiting import COLLAPSE, DEBOUNCE

LONGEST_WAIT_MS = 3_600_000  # the usual `max_wait_ms`: one hour
_LONGEST_KEY = 180  # characters; a longer key is replaced by its hash
_MAX_WAIT_MS = 10**12


def key_text(key: str | bytes) -> str:
    """A key as the store keeps it: one line of printable ASCII. Any other key, or a long one, becomes its hash."""
    raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    text = raw.decode("ascii", "replace")
    if raw.isascii() and text.isprintable() and len(text) <= _LONGEST_KEY and not text.startswith("sha256:"):
        return text
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def collapse_ref(key: str | bytes) -> str:
    """The ref of an item that is stored only if no item of its topic waits under `key`."""
    return f"{COLLAPSE}{key_text(key)}"


def debounce_ref(key: str | bytes, max_wait_ms: int = LONGEST_WAIT_MS) -> str:
    """The ref of an item that replaces the item of its topic that waits under `key`.

    Args:
        key: any text or bytes.
        max_wait_ms: the item is due at most this long after the first item of the key was stored, however many items
            replace each other. 0: no bound. Defaults to one hour.

    Raises:
        Rejected: `max_wait_ms` is no whole number of milliseconds from 0 up.
    """
    if type(max_wait_ms) is not int or not 0 <= max_wait_ms <= _MAX_WAIT_MS:
        raise Rejected(f"expected max_wait_ms to be whole milliseconds from 0 up, got: {max_wait_ms!r}")
    return f"{DEBOUNCE}{max_wait_ms}:{key_text(key)}"


def route_of(topic: str, key: str | bytes) -> str:
    """The route of the items of a key: all of them lie in its shard."""
    name = "\n".join((topic, key_text(key)))
    return f"once:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
