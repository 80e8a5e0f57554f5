"""The partition and the time of a produced message. Values that the topic would not accept are removed."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from retry_topic.brokers.kafka.producing import Placing, oldest_ms
from retry_topic.message import Message, Source
from retry_topic.message.encoding import encode_body
from wheel_sched.errors import Rejected

DAY_MS = 86_400_000


class Topics:
    """The partitions and the settings of a cluster's topics."""

    def __init__(self, settings: dict[str, str] | None, partitions: int = 3) -> None:
        self.settings = settings
        self.count = partitions
        self.asked = 0

    def partitions(self, topic: str) -> int:
        return self.count

    def settings_of(self, topic: str) -> dict[str, str] | None:
        self.asked += 1
        return self.settings


@pytest.mark.parametrize(
    ("settings", "expected_ms"),
    [
        ({}, float("inf")),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, float("inf")),
        ({"retention.ms": "1000", "cleanup.policy": "delete"}, 500),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, float("inf")),
        ({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, 500),
        ({"retention.ms": "1000", "message.timestamp.before.max.ms": "400"}, 200),
        ({"message.timestamp.difference.max.ms": str(2**63 - 1), "retention.ms": "1000"}, 500),
    ],
)
def test_how_old_a_time_may_be_follows_from_the_settings(settings: dict[str, str], expected_ms: float) -> None:
    """`oldest_ms` is half of the topic's retention, or half of its limit for timestamps, whichever is less."""
    assert oldest_ms(settings) == expected_ms


def test_what_a_topic_has_and_keeps_is_kept() -> None:
    """A message with a valid partition and a valid time is not changed, nor is a message that has neither."""
    now_ms = time.time_ns() // 1_000_000
    topics: Any = Topics({"retention.ms": str(DAY_MS)})
    plain = Message("t", b"plain")
    good = Message("t", b"good", partition=2, timestamp_ms=now_ms - DAY_MS // 4)
    placed = Placing(topics).placed([plain, good])
    assert placed[0] is plain
    assert placed[1] is good
    assert topics.asked == 1


@pytest.mark.parametrize(
    ("partition", "age_ms", "kept"),
    [
        (3, 0, (None, True)),
        (-1, 0, (None, True)),
        (None, DAY_MS, (None, False)),
        (0, -3_600_000, (0, False)),
        (0, None, (0, False)),
    ],
    ids=["no such partition", "no partition at all", "too old", "not yet", "no time"],
)
def test_what_it_has_or_keeps_not_is_left_to_it(
    partition: int | None, age_ms: int | None, kept: tuple[int | None, bool]
) -> None:
    """A partition that does not exist is removed, and so is a time that is too old or in the future. The broker then
    chooses. Nothing else changes."""
    now_ms = time.time_ns() // 1_000_000
    at_ms = 0 if age_ms is None else now_ms - age_ms
    topics: Any = Topics({"retention.ms": str(DAY_MS)})
    message = Message("t", b"v", b"k", (("h", b"1"),), Source("s", 0, "1"), partition=partition, timestamp_ms=at_ms)
    (placed,) = Placing(topics).placed([message])
    assert (placed.partition, placed.timestamp_ms) == (kept[0], at_ms if kept[1] else None)
    assert (placed.value, placed.key, placed.headers, placed.source) == (
        b"v",
        b"k",
        (("h", b"1"),),
        Source("s", 0, "1"),
    )


def test_no_time_is_kept_where_the_settings_may_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """If the topic's settings cannot be read, times are removed, and one warning names the missing right."""
    topics: Any = Topics(None)
    placing = Placing(topics)
    message = Message("t", b"v", partition=1, timestamp_ms=time.time_ns() // 1_000_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (placed,) = placing.placed([message])
            assert (placed.partition, placed.timestamp_ms) == (1, None)
    assert caplog.text.count("DESCRIBE_CONFIGS") == 1


@pytest.mark.parametrize("place", [{"partition": 0}, {"timestamp_ms": 0}], ids=str)
def test_a_message_that_waits_has_no_place_of_its_own(place: dict[str, int]) -> None:
    """`encode_body` refuses a message that has a partition or a time, because the store does not keep them."""
    with pytest.raises(Rejected, match="nothing was stored"):
        encode_body(Message("t", b"v", **place))  # type: ignore[arg-type]
