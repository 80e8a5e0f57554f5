"""Fair shares of due jobs between the values of a tag: the setting `fair` of a jobstore that processes share.

With `fair="tenant"`, a job with the tag `tenant:acme` has the fair key `acme`. The key is a ref of the stored
job. So it stays through runs and changes, and the store picks due jobs by it (`wheel_sched/store/fair_shares`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wheel_sched.duration import UNITS_MS
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore
from wheel_sched.store.fair_shares import REF, FairSettings, FairShares, fair_ref
from wheel_sched_apscheduler.stores.layout import JOB, TAG

OFF: Final = "off"
LEASES = 3  # if no process keeps a place, it becomes free after this many leases
_FIELDS = {"by", "weights", "default_weight", "max_in_flight", "rate"}
_RATE = re.compile(r"([0-9]{1,7})/(s|m|h)")
_WANTED = 'a tag such as "tenant", or {"by": "tenant", "weights": {"gold": 4}, "default_weight": 1, "rate": "50/s"}'


@dataclass(frozen=True, slots=True)
class FairJobs:
    """How a jobstore shares due jobs.

    Args:
        by: the tag whose value is the fair key: `tenant` for tags `tenant:<value>`. Defaults to "": jobs get no key.
        settings: the shares. Defaults to None: jobs are not shared, and `write_to` writes that into the store.
    """

    by: str = ""
    settings: FairSettings | None = None

    @property
    def counts_runs(self) -> bool:
        """Whether a key may have only some runs in flight. If so, a run that was split off counts too."""
        return self.settings is not None and self.settings.max_in_flight > 0

    def write_to(self, store: DelayStore) -> None:
        """Write the settings into the store. Every process that claims from the namespace then keeps to them.

        Raises:
            StoreError: the store does not answer; some shards may have the settings.
        """
        FairShares(store).configure(JOB, self.settings)


def refs_of_tags(tags: Sequence[str], fair: FairJobs | None) -> tuple[str, ...]:
    """The refs of a job with these tags: one for each tag, and its fair key if the jobstore shares by one of them."""
    refs = tuple(f"{TAG}{tag}" for tag in tags)
    if fair is None or not fair.by:
        return refs
    start = f"{fair.by}:"
    values = [tag.removeprefix(start) for tag in tags if tag.startswith(start)]
    return (fair_ref(values[0]), *refs) if values else refs


def without_tags(refs: Sequence[str]) -> tuple[str, ...]:
    """The refs of a job, without those that `refs_of_tags` has made."""
    return tuple(ref for ref in refs if not ref.startswith((TAG, REF)))


def read_fair(
    value: Any, shards: int, problems: list[str], *, lease_ms: int = 30_000, settles_first: bool = False
) -> FairJobs | None:
    """Read the setting `fair`. Adds what is wrong to `problems`.

    Args:
        value: the name of a tag, a mapping with `by` and the shares, "off", or None: the store is left as it is.
        shards: the number of shards of the namespace. Each shard counts for itself: it allows the rate divided by this
            number, and `max_in_flight` divided by it, at least 1.
        problems: gets a line for each fault.
        lease_ms: the lease of the jobstore. Defaults to 30,000.
        settles_first: whether delivery is at most once. Then runs in flight cannot be counted. Defaults to False.
    """
    if value is None:
        return None
    if value == OFF:
        return FairJobs()
    given: Any = {"by": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not given.keys() <= _FIELDS or not _is_tag(given.get("by")):
        problems.append(f'expected fair to be {_WANTED}, or "off", got: {value!r}')
        return None
    weights, rate, most = given.get("weights", {}), given.get("rate"), given.get("max_in_flight", 0)
    interval_us = _interval_us(rate)
    if not isinstance(weights, Mapping) or not all(isinstance(key, str) for key in weights):
        problems.append(f'expected fair.weights to be values of the tag with weights, {{"gold": 4}}, got: {weights!r}')
        weights = {}
    if interval_us is None:
        problems.append(f'expected fair.rate to be such as "50/s", "30/m" or "5/h", got: {rate!r}')
    if settles_first and most:
        problems.append('expected fair.max_in_flight only with delivery="at_least_once": no other run is counted')
    try:
        settings = FairSettings(
            weights=dict(weights),
            default_weight=given.get("default_weight", 1.0),
            max_in_flight=max(1, most // shards) if type(most) is int and most > 0 else most,
            in_flight_ms=LEASES * lease_ms,
            key_interval_us=(interval_us or 0) * shards,
        )
    except ConfigError as error:
        problems += [f"fair: {problem}" for problem in error.problems]
        return None
    return FairJobs(given["by"], settings)


def _is_tag(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and name.isprintable() and ":" not in name


def _interval_us(rate: Any) -> int | None:
    """Microseconds between two jobs of a key, rounded up; 0 without a rate, None when it cannot be read."""
    if rate is None:
        return 0
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or int(match[1]) < 1:
        return None
    return -(-UNITS_MS[match[2]] * 1000 // int(match[1]))
