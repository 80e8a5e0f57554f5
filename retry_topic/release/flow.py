"""Flow control: if a topic's limits hold a due message back, it waits in the store with a later due time.

Limits hold back only redeliveries (retries, replays, and messages that were parked behind a retry), and no message that
was published for later and has not failed. Any dispatcher of a namespace releases any group's messages, so all services
of a namespace must use the same policies. The store holds the state of the limits (granted release times, results of
attempts), so all dispatchers share one limit.

A policy can also spread due times. The intake does this when it stores a retry; this module only counts such retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from retry_topic.message import Headers
from retry_topic.message.encoding import split_reference
from retry_topic.message.headers.state import FIELDS
from retry_topic.policy import PolicySet, RetryDecision, RetryPolicy
from wheel_sched.dispatcher import Answer, Batch, Failed, Publisher
from wheel_sched.errors import Rejected, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import Claimed, DelayStore, Next, decode_push
from wheel_sched.store.rate_limits import Admitted, Limits, RateLimits

logger = logger_of("retry_topic.flow")

_GROUP = FIELDS["consumer_group"].header.encode()
_MOST = 200  # bytes of a destination


def flow_of(group: str, topic: str) -> str:
    """The name under which the store limits a group's retries of a topic."""
    return f"{group}/{topic}"


def destination_of(headers: Headers, by: str) -> str:
    """The destination in a message's header `by`; "" if the header is absent."""
    if not by:
        return ""
    found = next((content for name, content in reversed(headers) if name == by), b"")
    return _readable(found)


def limits_of(policy: RetryPolicy) -> Limits:
    """A policy's limits in the form that the store takes."""
    rate, budget, breaker = policy.rate, policy.budget, policy.breaker
    if policy.fair is not None:
        rate = None  # the store applies the rate when it picks the messages
    return Limits(
        interval_us=rate.interval_us if rate else 0,
        burst=policy.burst if rate else 0,
        share_ppm=budget.percent * 10_000 if budget else 0,
        least_mhz=budget.least.mhz if budget else 0,
        trip_ppm=breaker.percent * 10_000 if breaker else 0,
        of=breaker.of if breaker else 0,
        within_ms=breaker.within_ms if breaker else 0,
        open_ms=breaker.open_ms if breaker else 0,
    )


def is_limited(policies: PolicySet) -> bool:
    """Whether any of the policies has a rate (except that of a fair topic), a budget or a circuit breaker."""
    return policies.default.limited or any(policy.limited for policy in policies.topics.values())


def count_spread(control: RateLimits, group: str, policies: PolicySet, stored: Iterable[tuple[str, object]]) -> None:
    """Count the retries whose due time was delayed at random (`RetryPolicy.spread_ms`). `stats` shows the count.

    `stored` has the topic and the decision of each stored message. An error is only logged. Cost: one call for each
    topic whose policy has `spread_ms`; nothing without such a topic.
    """
    if not any(policy.spread_ms for policy in (policies.default, *policies.topics.values())):
        return
    counts = Counter(topic for topic, decision in stored if isinstance(decision, RetryDecision))
    for topic, count in counts.items():
        if policies.for_topic(topic).spread_ms:
            try:
                control.spread(flow_of(group, topic), count)
            except StoreError as error:
                logger.warning("flow.spread_not_counted: %s", error)


class FlowPublisher:
    """A dispatcher's publisher that passes messages within the limits to another publisher. Other messages wait longer.

    Args:
        publisher: sends the messages.
        store: holds the state of the limits.
        policies: the limits of each topic.
    """

    def __init__(self, publisher: Publisher, store: DelayStore, policies: PolicySet) -> None:
        self.traits = publisher.traits  # a limit costs only a call of the store, and no other wait
        self._publisher = publisher
        self._control = RateLimits(store)
        self._policies = policies
        self._limits: dict[RetryPolicy, Limits] = {}

    def publish(self, batch: Batch) -> None:
        """Give messages beyond the limits a later due time, and pass the batch on. Implements `Publisher.publish`."""
        wanted: dict[tuple[str, RetryPolicy], dict[str, list[int]]] = {}
        for place, item in enumerate(batch.items):
            policy = self._policies.for_topic(item.topic)
            if not policy.limited:
                continue
            group, destination = _read(item, policy)
            if group is not None:
                by_destination = wanted.setdefault((flow_of(group, item.topic), policy), {})
                by_destination.setdefault(destination, []).append(place)
        for (flow, policy), by_destination in wanted.items():
            self._hold_back(batch, flow, policy, by_destination)
        self._publisher.publish(batch)

    def refuse(self, item: Claimed, reason: str) -> Answer | None:
        """The answer for an item that the server could not push. Implements `Publisher.refuse`."""
        return self._publisher.refuse(item, reason)

    def _hold_back(self, batch: Batch, flow: str, policy: RetryPolicy, places: dict[str, list[int]]) -> None:
        limits = self._limits_of(policy)
        try:
            admitted = self._control.admit(flow, limits, [(name, len(found)) for name, found in places.items()])
        except StoreError as error:
            logger.warning("flow.store_away: %s", error)
            for place in (place for found in places.values() for place in found):
                batch.answers[place] = Failed("the store did not say whether the limits allow this message")
            return
        for found, answer in zip(places.values(), admitted, strict=True):
            for number, place in enumerate(found[answer.granted :]):
                batch.answers[place] = Next(batch.items[place].id, due_of(answer, number))

    def _limits_of(self, policy: RetryPolicy) -> Limits:
        if policy not in self._limits:
            self._limits[policy] = limits_of(policy)
        return self._limits[policy]


def due_of(answer: Admitted, number: int) -> int:
    """The new due time, in ms and rounded up, of a message that the limits hold back.

    `number`: the message's place among the messages that are held back together, from 0.
    """
    return -(-(answer.first_us + number * answer.step_us) // 1000)


def _read(item: Claimed, policy: RetryPolicy) -> tuple[str | None, str]:
    """The group that gets the item back (None if the item is no retry), and the destination in the item's header."""
    try:
        fields = decode_push(split_reference(item.body)[1]).pieces
    except Rejected:
        return None, ""
    names: Sequence[bytes] = fields[::2]
    if _GROUP not in names:  # a message published for later has an id, but has failed in no group
        return None, ""
    last = dict(zip(names, fields[1::2], strict=False))
    by = policy.breaker.by if policy.breaker else ""
    found = (last.get(b"h:" + by.encode()) or last.get(by.encode(), b"")) if by else b""
    return _readable(last.get(_GROUP, b"")), _readable(found)


def _readable(raw: bytes) -> str:
    return raw[:_MOST].decode("utf-8", "replace").replace("\n", " ")
