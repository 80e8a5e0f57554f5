"""Options of Spark's Kafka source, and the size of a batch."""

from __future__ import annotations

import pytest

from retry_topic.spark.kafka.offsets import check_follow, within
from retry_topic.spark.kafka.options import problems_of, read_options, settings_of, write_options
from retry_topic.spark.kafka.schemas import HEADERS, check_written
from wheel_sched.errors import BrokerError, ConfigError

HERE = {"kafka.bootstrap.servers": "h:1"}


def test_settings_of_the_client_are_handed_on() -> None:
    """An option with the prefix `kafka.` becomes a client setting without the prefix."""
    assert settings_of({**HERE, "kafka.sasl.username": "u", "subscribe": "t"}) == (
        ("bootstrap.servers", "h:1"),
        ("sasl.username", "u"),
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t"}, "bootstrap.servers"),
        (HERE, "name topics"),
        ({**HERE, "subscribe": "t", "colour": "red"}, "no option 'colour'"),
        ({**HERE, "subscribe": "t", "startingoffsets": "first"}, "startingOffsets"),
        ({**HERE, "subscribe": "t", "startingoffsets": '{"t": {"0": -3}}'}, "startingOffsets"),
        ({**HERE, "subscribe": "t", "startingoffsets": '{"u": {"0": 3}}'}, "among those of subscribe"),
        ({**HERE, "subscribe": "t", "maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger"),
        ({**HERE, "subscribe": "t", "endingoffsets": "latest"}, "has no end"),
        ({**HERE, "subscribe": "t", "kafka.transaction.timeout.ms": "1s"}, "transaction.timeout.ms"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(options: dict[str, str], words: str) -> None:
    """Wrong options raise an error before the first call to the cluster."""
    with pytest.raises(ConfigError, match=words):
        read_options(options, streaming=True)


def test_every_mistake_is_named() -> None:
    """One error lists all wrong options."""
    assert len(problems_of({"a": "1", "b": "2"})) == 3  # two unknown options and no address
    with pytest.raises(ConfigError, match="4 problems"):
        write_options({"subscribe": "t", "in_doubt": "guess"})


@pytest.mark.parametrize(
    ("columns", "has_topic", "words"),
    [
        ({"topic": "string"}, False, "a column value"),
        ({"value": "bigint"}, True, "value to be binary or string"),
        ({"value": "string"}, False, "a column topic"),
        ({"value": "string", "topic": "string"}, True, "and not both"),
        ({"value": "string", "offset": "bigint"}, True, "column 'offset' is unknown"),
        ({"value": "string", "headers": "map<string,string>"}, True, "headers to be"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(columns: dict[str, str], has_topic: bool, words: str) -> None:
    """Wrong columns raise an error before any row is computed."""
    with pytest.raises(ConfigError, match=words):
        check_written(columns, has_topic)
    check_written({"value": "string", "key": "binary", "headers": HEADERS, "topic": "string"}, False)


def test_a_batch_takes_its_share_of_each_partition() -> None:
    """A batch takes offsets of each partition in proportion to what waits in it, and at least one. A new partition
    begins at 0."""
    start, ends = {"t": {"0": 100, "1": 5}}, {"t": {"0": 190, "1": 6, "2": 9}}
    assert within(start, ends, None) == ends
    assert within(start, ends, 1_000) == ends
    assert within(start, ends, 10) == {"t": {"0": 109, "1": 6, "2": 1}}
    assert within({"t": {"0": 200}}, {"t": {"0": 190}}, None) == {"t": {"0": 200}}
    assert within(start, {}, None) == start


@pytest.mark.parametrize("ends", [{"t": {"0": 99}}, {"t": {"1": 100}}, {}])
def test_a_topic_that_was_recreated_is_noticed(ends: dict[str, dict[str, int]]) -> None:
    """If a topic ends before the last offset that was read, it was created again, which is an error."""
    with pytest.raises(BrokerError, match="created again"):
        check_follow({"t": {"0": 100}}, ends)
    check_follow({"t": {"0": 100}}, {"t": {"0": 100, "1": 5}, "u": {"0": 1}})
