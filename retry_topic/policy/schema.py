"""The keys of the policy file, in one table. Loading and dumping both use it, so they always agree.

[default]                      # every key may be left out
version = 3
max_attempts = 8               # or "unlimited"
max_age = "7d"                 # or "unlimited"
retry_after_max = "1d"
delay = { kind = "exponential", base = "1s", factor = 2, cap = "1h", jitter = "full" }
spread = "0ms"                 # each due time is delayed by up to this
rate = "100/s"                 # most releases per s, m or h; or "unlimited"
burst = 0                      # released at once after a pause; 0 = a second's worth
budget = { share = "20%", least = "1/s" }                                         # or "off"
breaker = { failures = "50%", of = 20, within = "1m", open = "30s", by = "" }     # or "off"
collapse = { key = "header:order" }    # or "off"; of the retries of one key only the first goes out
debounce = { key = "header:order", max_wait = "1h" }    # or "off"; only the last. Not both in one policy
# fair, only in a [topic.<name>] table: { key = "header:tenant", weights = { gold = 4 }, default_weight = 1,
#        max_in_flight = 10, in_flight_timeout = "10m", rate = "5/s" }              # or "off"; only key is required

[[default.rule]]               # first match wins
name = "bad input"
error = ["ValueError", "pydantic.*"]
dead = true

[topic.orders]                 # a missing key comes from the default (a name: the topic's); a given key replaces it
max_attempts = 20
"""

from __future__ import annotations

import re
from typing import Literal

KeyType = Literal["duration", "durations", "number", "text"]

FILE_KEYS = ("default", "topic")
POLICY_KEYS = (
    "name", "version", "max_attempts", "max_age", "retry_after_max", "delay", "spread", "rate", "burst", "budget",
    "breaker", "fair", "collapse", "debounce", "rule",
)  # fmt: skip
BUDGET_KEYS = ("share", "least")
BREAKER_KEYS = ("failures", "of", "within", "open", "by")
FAIR_KEYS = ("key", "weights", "default_weight", "max_in_flight", "in_flight_timeout", "rate")
COLLAPSE_KEYS = ("key",)
DEBOUNCE_KEYS = ("key", "max_wait")
OFF = "off"
RULE_KEYS = ("name", "error", "status", "dead", "max_attempts", "max_age", "delay")
UNLIMITED = "unlimited"

DELAY_KEYS: dict[str, dict[str, tuple[str, KeyType]]] = {
    "fixed": {"base": ("base_ms", "duration"), "jitter": ("jitter", "text")},
    "linear": {
        "base": ("base_ms", "duration"),
        "step": ("step_ms", "duration"),
        "cap": ("cap_ms", "duration"),
        "jitter": ("jitter", "text"),
    },
    "exponential": {
        "base": ("base_ms", "duration"),
        "factor": ("factor", "number"),
        "cap": ("cap_ms", "duration"),
        "jitter": ("jitter", "text"),
    },
    "decorrelated": {"base": ("base_ms", "duration"), "cap": ("cap_ms", "duration")},
    "list": {"delays": ("delays_ms", "durations"), "jitter": ("jitter", "text")},
}
"""For each kind of delay: key in the file -> field of the class and type of the value."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def place_of(*keys: str) -> str:
    """A dotted TOML key, quoted where necessary: `topic."orders.eu".rule.2`."""
    return ".".join(key if _BARE_KEY.fullmatch(key) else f'"{key}"' for key in keys)
